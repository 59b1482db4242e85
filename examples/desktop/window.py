"""The window: conversations at the left, what was said, and the memory that it may take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import conversations
from ceiling import Ceiling
from conversations import Conversation, Turn
from ledger import Ledger
from model import Model
from PySide6 import QtWidgets
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QCloseEvent, QDragEnterEvent, QDropEvent, QFont, QTextCharFormat, QTextCursor

import edgekv

PLAIN = QTextCharFormat()
LOOK_MS = 1000  # between two looks at who holds the memory


class Window(QtWidgets.QMainWindow):
    """Shows what the model says, and asks it. It never waits for it.

    busy: why nothing can be asked now; "" = something can
    running: the conversation that is being answered, and its turn with what was said so far
    """

    def __init__(self, model: Model, folder: Path, memory: int | str) -> None:
        """folder: of the conversations; memory: the ceiling to begin with"""
        super().__init__(windowTitle="Desktop chat", acceptDrops=True)
        self.resize(960, 680)
        self.model, self.folder = model, folder
        self.conversations = list(conversations.saved(folder)) or [conversations.new(folder)]
        self.shown = self.conversations[0]
        self.running: tuple[Conversation, Turn] | None = None
        self.files: tuple[str, ...] = ()
        self._build()
        self._connect()
        self._show_list()
        self._load(memory)

    def _build(self) -> None:
        self.list, self.new_button = QtWidgets.QListWidget(), QtWidgets.QPushButton("New conversation")
        self.ceiling, self.ledger = Ceiling(), Ledger()
        self.looks = QTimer(self, interval=LOOK_MS)
        self.text, self.input = QtWidgets.QTextEdit(readOnly=True), QtWidgets.QLineEdit()
        self.reading = QtWidgets.QProgressBar(visible=False, format="Reading: %v of %m tokens")
        self.attached = QtWidgets.QLabel(visible=False)
        self.attach_button, self.send_button = QtWidgets.QPushButton("Attach ..."), QtWidgets.QPushButton("Send")
        self.stop_button = QtWidgets.QPushButton("Stop")
        for widget in (self.text, self.input):
            widget.setAcceptDrops(False)  # the window takes dropped files, wherever they fall
        self.list.setWordWrap(True)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        buttons = QtWidgets.QHBoxLayout()
        buttons.addWidget(self.attach_button)
        buttons.addStretch()
        for button in (self.send_button, self.stop_button):
            buttons.addWidget(button)
        splitter = QtWidgets.QSplitter()
        for widgets in (
            (self.new_button, self.list, self.ceiling, self.ledger),
            (self.text, self.reading, self.attached, self.input),
        ):
            side = QtWidgets.QWidget()
            column = QtWidgets.QVBoxLayout(side)
            for widget in widgets:
                column.addWidget(widget)
            splitter.addWidget(side)
        column.addLayout(buttons)
        splitter.setSizes([290, 670])
        self.setCentralWidget(splitter)

    def _connect(self) -> None:
        self.list.currentRowChanged.connect(self._show)
        self.new_button.clicked.connect(self.begin)
        self.attach_button.clicked.connect(lambda: self.attach(QtWidgets.QFileDialog.getOpenFileNames(self)[0]))
        self.input.returnPressed.connect(self.send)
        self.send_button.clicked.connect(self.send)
        self.stop_button.clicked.connect(self.model.stop)
        self.ceiling.moved.connect(self.model.plan)
        self.ceiling.chosen.connect(self._load)
        self.model.loaded.connect(self._loaded)
        self.model.planned.connect(self.ceiling.show_plan)
        self.model.held.connect(self.ledger.show_entries)
        self.looks.timeout.connect(self.model.look)
        self.model.progressed.connect(self._progressed)
        self.model.said.connect(self._said)
        self.model.answered.connect(self._answered)
        self.model.failed.connect(self._failed)
        self.model.noticed.connect(self._note)

    # what the user does

    def begin(self) -> None:
        """Begin a conversation, or go to the one that has not begun."""
        newest = self.conversations[0]
        if newest.turns or (self.running is not None and self.running[0] is newest):
            self.conversations.insert(0, conversations.new(self.folder))
        self.shown = self.conversations[0]
        self._show_list()

    def attach(self, paths: list[str]) -> None:
        """Have the next message go with these files too. They are read when it is sent."""
        self.files = tuple(dict.fromkeys((*self.files, *paths)))
        self.attached.setText(_beside(self.files))
        self.attached.setVisible(bool(self.files))

    def send(self) -> None:
        """Ask what is written."""
        turn = Turn(self.input.text(), self.files)
        if self.busy or not turn.text.strip():
            return
        self.running = self.shown, turn
        self._set_message("", ())
        self._draw(turn)
        self._set_busy(f"“{turn.text[:30]}” is being answered; wait, or stop it")
        self.model.ask(self.shown, turn)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:  # noqa: N802  (Qt's name)
        """Take files."""
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802
        """Attach them."""
        self.attach([url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()])
        event.acceptProposedAction()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802
        """End the model's process too. A reply that is under way is kept as far as it has come."""
        self.looks.stop()
        self.model.close()
        event.accept()

    def _load(self, memory: int | str) -> None:
        self._set_busy("The model is being loaded")
        self.model.load(memory, self.shown)

    # what the model tells

    def _loaded(self, plan: edgekv.Plan) -> None:
        self.ceiling.show_loaded(plan)
        self.looks.start()
        self._set_busy("")

    def _progressed(self, progress: edgekv.Progress) -> None:
        self.reading.setRange(0, progress.tokens_total)
        self.reading.setValue(progress.tokens_done)
        self.reading.setVisible(progress.tokens_done < progress.tokens_total)

    def _said(self, piece: str) -> None:
        conversation, turn = self.running
        self.running = conversation, replace(turn, reply=turn.reply + piece)
        if conversation is self.shown:
            self._write(piece)

    def _answered(self, turn: Turn, stats: edgekv.Stats) -> None:
        conversation, _ = self.running
        conversation.turns.append(turn)
        self.running = None
        self.list.item(self.conversations.index(conversation)).setText(conversation.title)
        self.ceiling.show_peak(stats.peak_rss_bytes)
        self.statusBar().showMessage(remembered(stats))
        self._set_busy("")

    def _failed(self, reason: str) -> None:
        """Nothing has changed: the message is where it was written, and another ceiling is not in force."""
        if self.running is not None:
            self.shown, turn = self.running
            self.running = None
            self._show_list()
            self._set_message(turn.text, turn.files)
        self._set_busy("" if self.ceiling.plan else "The model is not loaded; choose another ceiling")
        self.ceiling.set_idle(True)
        self._note(reason)

    # what is shown

    def _set_busy(self, why: str) -> None:
        self.busy = why
        self.input.setEnabled(not why)
        self.input.setPlaceholderText(why or "Write a message; files can be dropped anywhere")
        self.send_button.setVisible(self.running is None)
        self.send_button.setEnabled(not why)
        self.stop_button.setVisible(self.running is not None)
        self.reading.hide()
        self.ceiling.set_idle(not why)

    def _set_message(self, text: str, files: tuple[str, ...]) -> None:
        self.input.setText(text)
        self.files = ()
        self.attach(list(files))

    def _show_list(self) -> None:
        self.list.blockSignals(True)
        self.list.clear()
        self.list.addItems([conversation.title for conversation in self.conversations])
        self.list.setCurrentRow(self.conversations.index(self.shown))
        self.list.blockSignals(False)
        self._show(self.list.currentRow())

    def _show(self, row: int) -> None:
        self.shown = self.conversations[row]
        self.text.clear()
        for turn in self.shown.turns:
            self._draw(turn)
        if self.running is not None and self.running[0] is self.shown:
            self._draw(self.running[1])

    def _draw(self, turn: Turn) -> None:
        bold = QTextCharFormat()
        bold.setFontWeight(QFont.Weight.Bold)
        gap = "" if self.text.document().isEmpty() else "\n\n"
        self._write(f"{gap}{turn.text}\n", bold)
        if turn.files:
            self._write(f"{_beside(turn.files)}\n")
        self._write(turn.reply)

    def _note(self, text: str) -> None:
        italic = QTextCharFormat()
        italic.setFontItalic(True)
        self._write(f"\n{text}\n", italic)

    def _write(self, text: str, style: QTextCharFormat = PLAIN) -> None:
        """Put a text at the end. It is never markup, whatever it says."""
        self.text.moveCursor(QTextCursor.MoveOperation.End)
        self.text.textCursor().insertText(text, style)
        self.text.ensureCursorVisible()


def remembered(stats: edgekv.Stats) -> str:
    """Say where the tokens of a conversation lie."""
    lies = {"in memory": stats.kept_tokens, "on the disk": stats.recallable_tokens, "forgotten": stats.forgotten_tokens}
    places = ", ".join(f"{n_tokens:,} {place}" for place, n_tokens in lies.items() if n_tokens)
    return f"{stats.tokens_seen:,} tokens seen: {places}"


def _beside(files: tuple[str, ...]) -> str:
    return "With " + ", ".join(Path(file).name for file in files)
