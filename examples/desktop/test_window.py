"""The window, used as its users do, with a real model: it never waits, and survives whatever happens to the model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from model import Model
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDragEnterEvent, QDropEvent
from PySide6.QtWidgets import QApplication
from window import Window, remembered

import edgekv

LIMIT_MS = 120_000  # far more than anything here takes
LONG = "Write a long story about a lighthouse."
MIB = 1 << 20


def opened(folder, memory="256MiB"):
    window = Window(Model(threads=2), folder, memory)
    window.show()
    return window


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("conversations")


@pytest.fixture(scope="module")
def shared_window(qapp, folder):
    window = opened(folder)
    yield window
    window.close()


@pytest.fixture
def window(qtbot, shared_window):
    """The window, at a conversation that has not begun."""
    qtbot.waitUntil(lambda: not shared_window.busy, timeout=LIMIT_MS)
    shared_window.begin()
    shared_window.files = ()
    shared_window.input.clear()
    return shared_window


@pytest.fixture
def begin(qtbot):
    """A function that sends a message, and waits until some of the reply is there."""

    def send_and_wait(window, text):
        window.input.setText(text)
        qtbot.keyClick(window.input, Qt.Key.Key_Return)
        assert window.busy
        qtbot.waitUntil(lambda: len(window.running[1].reply) > 20, timeout=LIMIT_MS)

    return send_and_wait


@pytest.fixture
def ask(qtbot):
    """A function that sends a message and gives the reply; None where it is taken back."""

    def send_and_wait(window, text):
        n_turns = len(window.shown.turns)
        window.input.setText(text)
        qtbot.keyClick(window.input, Qt.Key.Key_Return)
        qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
        return window.shown.turns[-1].reply if len(window.shown.turns) > n_turns else None

    return send_and_wait


def drop(window, *files):
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(file)) for file in files])
    where = QPointF(window.rect().center())
    given = (Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier)
    entered = QDragEnterEvent(where.toPoint(), *given)
    QApplication.sendEvent(window, entered)
    assert entered.isAccepted()
    QApplication.sendEvent(window, QDropEvent(where, *given))


def test_what_was_said_outlives_the_window(qtbot, window, folder, ask):
    first = ask(window, "What is the capital of France?")
    assert "France" in first
    assert first in window.text.toPlainText()
    assert 0 < window.ceiling.gauge.value() <= 256
    again = opened(folder)
    qtbot.addWidget(again)
    qtbot.waitUntil(lambda: not again.busy, timeout=LIMIT_MS)
    assert [turn.reply for turn in again.shown.turns] == [first]
    assert first in again.text.toPlainText()
    assert ask(again, "And of Italy?")
    assert again.list.item(0).text() == "What is the capital of France?"
    assert [path.name for path in sorted(again.shown.folder.iterdir())] == ["2.session", "turns.json"]


def test_the_ledger_says_who_holds_the_memory(qtbot, window, ask):
    assert ask(window, "What is the capital of France?")
    with qtbot.waitSignal(window.model.held, timeout=LIMIT_MS):
        window.model.look()
    table = window.ledger.table
    rows = [[table.topLevelItem(row).text(column) for column in range(3)] for row in range(table.topLevelItemCount())]
    assert [owner for owner, *_ in rows if owner in ("Weights", "Cells")] == ["Weights", "Cells"]
    assert all(0 < int(held) <= 256 for owner, held, _ in rows if owner in ("Weights", "Cells", "The program"))
    assert "takes " in window.ledger.order.text()
    assert window.ledger.order.text().endswith("cells.")


def test_a_line_says_where_the_tokens_lie():
    stats = edgekv.Stats(tokens_seen=100, cells_used=40, recallable_tokens=50)
    assert remembered(stats) == "100 tokens seen: 40 in memory, 50 on the disk, 10 forgotten"
    assert remembered(edgekv.Stats(tokens_seen=9, cells_used=9)) == "9 tokens seen: 9 in memory"


def test_stop_keeps_what_was_said(qtbot, window, begin, ask):
    begin(window, LONG)
    qtbot.mouseClick(window.stop_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
    (turn,) = window.shown.turns
    assert turn.reply in window.text.toPlainText()
    assert ask(window, "What is the capital of France?")
    assert len(window.shown.turns) == 2


def test_stop_while_a_text_is_read_takes_the_message_back(qtbot, window, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("The lighthouse stands on a rock, and nobody goes there. " * 2000)
    drop(window, book)
    window.input.setText(LONG)
    qtbot.mouseClick(window.send_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(window.reading.isVisible, timeout=LIMIT_MS)
    window.stop_button.click()
    qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
    assert "the conversation is as it was" in window.text.toPlainText()
    assert (window.input.text(), window.files) == (LONG, (str(book),))
    assert window.shown.turns == []
    window.files = ()
    window.input.setText("Hello")
    with qtbot.waitSignal(window.model.answered, timeout=LIMIT_MS) as told:
        window.send()
    _, stats = told.args
    assert stats.tokens_seen <= stats.prompt_tokens + stats.generated_tokens


def test_a_reply_goes_on_while_another_conversation_is_shown(qtbot, window, begin, ask):
    begin(window, LONG)
    said = window.running[1].reply
    qtbot.mouseClick(window.new_button, Qt.MouseButton.LeftButton)
    assert window.text.toPlainText() == ""
    assert not window.input.isEnabled()
    assert "“Write a long story" in window.input.placeholderText()
    qtbot.waitUntil(lambda: len(window.running[1].reply) > len(said), timeout=LIMIT_MS)
    assert window.text.toPlainText() == ""
    window.list.setCurrentRow(1)
    (running, _), (new, *_) = window.running, window.conversations
    assert window.text.toPlainText().endswith(window.running[1].reply)
    window.list.setCurrentRow(0)
    window.stop_button.click()
    qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
    assert (len(new.turns), len(running.turns)) == (0, 1)
    assert ask(window, "Hello")
    assert (len(new.turns), len(running.turns)) == (1, 1)


def test_a_killed_worker_costs_the_running_reply_and_no_more(qtbot, window, begin, ask):
    questions = ["My name is Ada. Say hello to me.", "Tell me a joke about ships."]
    undisturbed = [ask(window, question) for question in questions]
    window.begin()
    assert ask(window, questions[0]) == undisturbed[0]
    begin(window, questions[1])
    killed = window.model.worker_pid
    os.kill(killed, signal.SIGKILL)
    qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
    assert f"worker process {killed} was ended by signal 9" in window.text.toPlainText()
    assert (len(window.shown.turns), window.input.text()) == (1, questions[1])
    assert ask(window, window.input.text()) == undisturbed[1]
    assert window.model.worker_pid != killed


def test_a_worker_that_died_between_messages_is_replaced_unasked(window, ask):
    ask(window, "Hello")
    os.kill(window.model.worker_pid, signal.SIGKILL)
    assert ask(window, "What is the capital of France?")
    assert "was ended by signal 9" in window.text.toPlainText()


def test_dropped_files_are_read(window, ask, tmp_path):
    assert not any(child.acceptDrops() for child in (window.text, window.input, window.list))
    notes = tmp_path / "notes.txt"
    notes.write_text("The door of the old mill is painted green. The key lies under the third stone.")
    drop(window, notes)
    assert "notes.txt" in window.attached.text()
    assert "green" in ask(window, "Which colour has the door of the mill?")
    assert window.files == ()
    assert window.shown.turns[0].files == (str(notes),)


def test_what_is_no_text_is_refused_in_words(window, ask, tmp_path):
    picture = tmp_path / "picture.png"
    picture.write_bytes(bytes(range(256)) * 10)
    for path in (picture, tmp_path, tmp_path / "none.txt"):
        window.files = ()
        window.attach([])
        drop(window, path)
        assert ask(window, "What is this?") is None
        assert str(path) in window.text.toPlainText()
        assert (window.input.text(), window.files) == ("What is this?", (str(path),))


def test_a_ceiling_shows_its_plan_before_it_is_in_force(qtbot, window, ask):
    ceiling, pid = window.ceiling, window.model.worker_pid
    ask(window, "Hello")
    ceiling.slider.setValue(0)
    qtbot.waitUntil(lambda: "does not hold" in ceiling.preview.text(), timeout=LIMIT_MS)
    assert not ceiling.apply.isEnabled()
    ceiling.slider.setValue(20)
    qtbot.waitUntil(lambda: "362 MiB give" in ceiling.preview.text(), timeout=LIMIT_MS)
    assert (ceiling.plan.ceiling_bytes, window.model.worker_pid) == (256 * MIB, pid)
    qtbot.mouseClick(ceiling.apply, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
    assert ceiling.plan.ceiling_bytes == 362 * MIB
    assert window.model.worker_pid != pid
    assert ask(window, "And now?")
    assert len(window.shown.turns) == 2


def test_a_ceiling_that_does_not_hold_the_conversation_is_not_in_force(qtbot, window, ask, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("".join(f"Room {n} of the old mill has {n % 7} windows. " for n in range(60)))
    drop(window, book)
    assert ask(window, "How many windows has room 5?")
    ceiling, plan = window.ceiling, window.ceiling.plan
    ceiling.chosen.emit(100 << 20)  # no plan offers it
    qtbot.waitUntil(lambda: "100.0 MiB does not hold" in window.text.toPlainText(), timeout=LIMIT_MS)
    qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
    assert ceiling.plan == plan
    assert ask(window, "And room 6?")


def test_a_ceiling_too_low_to_begin_with(qtbot, tmp_path, ask):
    window = opened(tmp_path, "64MiB")
    qtbot.addWidget(window)
    qtbot.waitUntil(lambda: window.text.toPlainText() != "", timeout=LIMIT_MS)
    assert "does not hold" in window.text.toPlainText()
    assert not window.input.isEnabled()
    window.ceiling.slider.setValue(16)
    qtbot.waitUntil(window.ceiling.apply.isEnabled, timeout=LIMIT_MS)
    window.ceiling.apply.click()
    qtbot.waitUntil(lambda: not window.busy, timeout=LIMIT_MS)
    assert ask(window, "Hello")


def test_one_question_from_the_command_line(tmp_path):
    app = Path(__file__).with_name("app.py")
    command = [sys.executable, app, "--folder", tmp_path, "--threads", "2", "--ask"]
    asked = [*command, "What is the capital of France?"]
    done = subprocess.run([*map(str, asked)], capture_output=True, text=True, timeout=LIMIT_MS / 1000, check=True)
    assert "France" in done.stdout
    refused = subprocess.run(
        [*map(str, asked), str(tmp_path / "none.txt")], capture_output=True, text=True, check=False
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "none.txt" in refused.stderr
