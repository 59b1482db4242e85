"""Make the picture of the window in examples/desktop/README.md.

    QT_QPA_PLATFORM=offscreen python scripts/picture_desktop.py [PNG]

Needs the default model, the development dependencies and fonts.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PySide6.QtWidgets import QApplication

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "desktop"
sys.path.insert(0, str(EXAMPLE))

from model import Model  # noqa: E402
from window import Window  # noqa: E402

TALKS = (
    ("What is the capital of France?", []),
    ("What is the road to the City of Emeralds paved with?", [str(ROOT / "examples" / "oz.txt")]),
)


def main(path: Path) -> None:
    """Have two conversations, ask for the plan of a lower ceiling, and grab the window."""
    application = QApplication([])
    with tempfile.TemporaryDirectory() as folder:
        window = Window(Model(), Path(folder), "208MiB")
        window.show()

        def steps() -> Iterator[None]:
            for question, files in TALKS:
                window.begin()
                window.attach(files)
                window.input.setText(question)
                window.send()
                yield
            window.ceiling.slider.setValue(13)
            yield
            window.grab().save(str(path))
            window.close()
            application.quit()

        todo = steps()
        for done in (window.model.loaded, window.model.answered, window.model.planned):
            done.connect(lambda *_: next(todo, None))
        application.exec()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLE / "window.png")
