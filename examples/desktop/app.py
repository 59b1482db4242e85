"""A chat in a window, with a model that stays inside a memory ceiling: python app.py --memory 256MiB"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from model import Model
from PySide6.QtCore import QCoreApplication, QStandardPaths
from PySide6.QtWidgets import QApplication
from window import Window


def main() -> int:
    """Show the window until it is closed."""
    QCoreApplication.setApplicationName("edgekv-desktop")
    folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.AppDataLocation)
    parser = argparse.ArgumentParser(description="A chat in a window, under a memory ceiling.")
    parser.add_argument("--memory", default="256MiB", help="ceiling of the model's process (%(default)s)")
    parser.add_argument("--model", help="path or name of a GGUF model (the default model of edgekv)")
    parser.add_argument("--threads", type=int, help="threads of the model (one for every processor)")
    parser.add_argument("--folder", type=Path, default=folder, help="where conversations lie (%(default)s)")
    parser.add_argument("--ask", metavar="QUESTION", help="ask this, print the answer and leave")
    parser.add_argument("files", nargs="*", help="text files that go with the first message")
    given = parser.parse_args()
    application = QApplication(sys.argv[:1])
    model = Model(model=given.model, threads=given.threads)
    window = Window(model, given.folder, given.memory)
    window.attach(given.files)
    if given.ask is not None:
        ask_once(window, given.ask)
    window.show()
    return application.exec()


def ask_once(window: Window, question: str) -> None:
    """Ask as soon as the model is loaded, and leave with the answer, or with status 1."""
    application = QApplication.instance()

    def leave(status: int, text: str) -> None:
        print(text, file=sys.stderr if status else sys.stdout)
        window.close()
        application.exit(status)

    def ask() -> None:
        window.begin()
        window.input.setText(question)
        window.send()

    window.model.loaded.connect(ask)
    window.model.answered.connect(lambda turn, stats: leave(0, turn.reply))
    window.model.failed.connect(lambda reason: leave(1, reason))


if __name__ == "__main__":
    sys.exit(main())
