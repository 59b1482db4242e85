"""The log of a session: ids on the disk, whose they are, and what is common with another text."""

from __future__ import annotations

import errno
import random
import threading

import numpy as np
import pytest

import edgekv
from edgekv.memory.raw_files import read_all
from edgekv.store import temp_array
from edgekv.store.log import TEMPLATE, TokenLog
from edgekv.store.temp_array import WINDOW, TempArray


@pytest.fixture
def log():
    log = TokenLog()
    yield log
    log.close()


def note(log, tokens):
    for token in tokens:
        log.make_room(1)
        log.follow([token], len(log) + 1)


def test_numbers_are_those_of_a_list():
    """Appended in pieces, cut anywhere, read anywhere: in the file, in memory, and across."""
    rng, numbers, expected = random.Random(1), TempArray(None), []
    for step in range(300):
        piece = [rng.randrange(1 << 31) for _ in range(rng.choice((1, 5, 700, WINDOW)))]
        numbers.make_room(len(piece))
        numbers.append(piece)
        expected += piece
        if step % 7 == 0:
            n = len(expected) - rng.randrange(min(len(expected), 2 * WINDOW))
            numbers.cut(n)
            del expected[n:]
        assert len(numbers) == len(expected)
        start = rng.randrange(len(expected) + 1)
        stop = min(len(expected), start + rng.randrange(3 * WINDOW))
        assert numbers.read(start, stop).tolist() == expected[start:stop]
    assert len(expected) > 10 * WINDOW
    numbers.close()


@pytest.mark.parametrize("change", [TempArray.close, lambda numbers: numbers.extend(np.full(WINDOW, -1, np.int32))])
def test_a_read_is_of_one_moment(monkeypatch, change):
    """Changes by another thread come after it."""
    numbers = TempArray(None)
    numbers.extend(np.arange(WINDOW + 10, dtype=np.int32))  # some lie in the file, the newest in memory
    other = threading.Thread(target=change, args=(numbers,))

    def read_slowly(file, into):
        other.start()
        other.join(0.2)
        return read_all(file, into)

    monkeypatch.setattr(temp_array, "read_all", read_slowly)
    assert numbers.read(0, WINDOW + 10).tolist() == list(range(WINDOW + 10))
    other.join()
    monkeypatch.undo()
    numbers.close()
    with pytest.raises(edgekv.SessionError, match="this session is closed"):
        numbers.read(0, 1)


def test_tokens_are_noted_once(log):
    """Tokens that a log already has are read again after a return."""
    note(log, range(10))
    log.make_room(4)
    log.follow([6, 7, 8, 9], 10)
    log.follow([8, 9, 10, 11], 12)
    assert log.read(0, 99).tolist() == list(range(12))
    assert list(log.tokens(3, 7)) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("tokens", "n_common"), [([], 0), ([1, 2], 2), ([1, 2, 3], 3), ([1, 2, 3, 4], 3), ([1, 5, 3, 4], 1), ([9] * 9, 0)]
)
def test_what_is_common(log, tokens, n_common):
    note(log, [1, 2, 3])
    assert log.common(iter(tokens)) == (n_common, len(tokens))


def test_what_is_common_is_found_beyond_the_window(log):
    text = [i % 977 for i in range(3 * WINDOW + 5)]
    note(log, text)
    assert log.common(text) == (len(text), len(text))
    text[2 * WINDOW + 3] = -1
    assert log.common(text) == (2 * WINDOW + 3, len(text))


def marked(log):
    """A chat: a template around a system message, a question, its answer, and a question that was begun twice."""
    note(log, range(100))
    for position, role, state in (
        *((0, TEMPLATE, "user"), (2, "system", "user"), (5, TEMPLATE, "user"), (8, "user", "user")),
        *((20, TEMPLATE, "user"), (25, "assistant", "assistant"), (60, TEMPLATE, "user")),
        *((62, "user", "open"), (80, "user", "user"), (90, TEMPLATE, "user"), (99, "assistant", "assistant")),
    ):
        log.mark(position, role, state)


def test_turns_are_told_without_the_template(log):
    marked(log)
    turns = [("system", 2, 5), ("user", 8, 20), ("assistant", 25, 60)]
    turns += [("user", 62, 80), ("user", 80, 90), ("assistant", 99, 100)]
    assert list(log.turns()) == turns
    assert list(log.turns(n_said=2)) == [*turns[:-1], ("assistant", 99, 102)]
    log.cut(99)  # the reply begins, and nothing of it is there
    assert list(log.turns()) == turns[:-1]
    assert list(log.turns(n_said=1)) == [*turns[:-1], ("assistant", 99, 100)]
    log.cut(30)
    assert list(log.turns()) == [*turns[:2], ("assistant", 25, 30)]
    log.mark(10, TEMPLATE, "user")  # a later mark of an earlier position replaces those after it
    assert list(log.turns()) == [turns[0], ("user", 8, 10)]


def test_the_state_of_the_turns_after_any_number_of_tokens(log):
    marked(log)
    expected = {
        0: "new",
        1: "opening",
        8: "opening",
        9: "user",
        25: "assistant",
        26: "assistant",
        60: "assistant",
        61: "user",
    }
    expected |= {62: "user", 63: "open", 80: "open", 81: "user", 99: "assistant", 100: "assistant"}
    assert {n: log.state_at(n) for n in expected} == expected


def test_a_reply_without_tokens_is_one_when_another_turn_follows(log):
    note(log, range(10))
    for position, role, state in ((0, TEMPLATE, "user"), (2, "user", "user"), (10, "assistant", "assistant")):
        log.mark(position, role, state)
    log.expect(10)
    log.announce(10, TEMPLATE, "user")
    log.announce(12, "user", "user")
    note(log, range(4))
    assert [log.state_at(n) for n in (9, 10, 11, 14)] == ["user", "assistant", "user", "user"]
    assert list(log.turns()) == [("user", 2, 10), ("user", 12, 14)]
    assert log.is_sound(20)
    log.cut(10)
    assert log.state_at(10) == "assistant"
    log.expect(10)
    log.announce(10, "assistant", "assistant")
    note(log, range(1))
    assert list(log.turns()) == [("user", 2, 10), ("assistant", 10, 11)]


def test_a_copy_is_the_log(log):
    marked(log)
    note(log, range(2 * WINDOW))
    copy = log.copy()
    assert copy.nbytes == log.nbytes
    other = TokenLog()
    other.fill(copy)
    assert len(other) == len(log)
    assert list(other.turns()) == list(log.turns())
    np.testing.assert_array_equal(other.copy().tokens, copy.tokens)
    other.close()


def test_a_full_disk_is_told_before_anything_is_noted(log, monkeypatch):
    def full(_data):
        raise OSError(errno.ENOSPC, "No space left on device")

    note(log, range(WINDOW))
    monkeypatch.setattr(log._tokens, "_file", type("Full", (), {"seek": lambda *_: 0, "write": staticmethod(full)})())
    with pytest.raises(edgekv.SessionFileError, match=r"cannot be written: No space left .* history=FOLDER"):
        log.make_room(1)
    assert log.read(0, WINDOW).tolist() == list(range(WINDOW))  # nothing is lost


def test_a_folder_that_takes_no_file(tmp_path):
    with pytest.raises(edgekv.SessionFileError, match=r"history='.*absent' takes no file: .* name a folder"):
        TokenLog(str(tmp_path / "absent"))


def test_nothing_is_left_in_the_folder(tmp_path):
    log = TokenLog(str(tmp_path))
    note(log, range(WINDOW + 1))
    log.close()
    assert list(tmp_path.iterdir()) == []
