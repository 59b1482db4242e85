"""Make the picture of the window in examples/desktop/README.md.

    QT_QPA_PLATFORM=offscreen python scripts/picture_desktop.py [PNG] [--dark] [--width POINTS]
    xvfb-run python scripts/picture_desktop.py          # in a window of X11

Needs the default model, the development dependencies and fonts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PySide6.QtGui import QColor, QPalette
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


def main() -> None:
    """Have two conversations, ask for the plan of a lower ceiling, and grab the window."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="?", default=EXAMPLE / "window.png", metavar="PNG")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, help="default: the window's own; it is never below some 500")
    given = parser.parse_args()
    application = QApplication([])
    if given.dark:
        application.setPalette(QPalette(QColor("#2b2b2b")))  # its other colours follow from that of buttons
    with tempfile.TemporaryDirectory() as folder:
        window = Window(Model(), Path(folder), "208MiB")
        window.resize(given.width or window.width(), window.height())
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
            window.grab().save(str(given.path))
            window.close()
            application.quit()

        todo = steps()
        for done in (window.model.loaded, window.model.answered, window.model.planned):
            done.connect(lambda *_: next(todo, None))
        application.exec()


if __name__ == "__main__":
    main()
