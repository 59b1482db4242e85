"""A terminal as its user sees it: a program in a real pty, and an emulator that draws what it prints."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager

import pexpect
import pyte
from children import LIMIT_S, default_interrupt

DRAWING_S = 2  # longest wait for the cursor; a bar of progress hides it for longer


class Screen:
    """The screen of a program, line by line, with all that has scrolled away; `raw` is what it printed."""

    def __init__(self, child, columns, lines):
        self.child = child
        self.raw = ""
        self._emulator = pyte.HistoryScreen(columns, lines, history=100_000)
        self._stream = pyte.Stream(self._emulator)
        self._typed_at = 0  # the line in which something was typed last

    def lines(self):
        """All lines, the oldest first."""
        width = self._emulator.columns
        scrolled = ("".join(row[i].data for i in range(width)) for row in self._emulator.history.top)
        return [line.rstrip() for line in (*scrolled, *self._emulator.display)]

    def text(self):
        """All that was shown."""
        return "\n".join(self.lines()).rstrip()

    def press(self, keys):
        """Type keys: "\r" is Enter."""
        self._finish_drawing()
        self._typed_at = len(self._emulator.history.top) + self._emulator.cursor.y
        self.child.send(keys)

    def interrupt(self, times=1):
        """Press Ctrl-C at once, also while a reply is drawn; what was typed last stays what is waited behind."""
        self.child.send("\x03" * times)

    def paste(self, text):
        """Paste a text, as terminals mark it."""
        self.press(f"\x1b[200~{text}\x1b[201~")

    def type(self, line):
        """Type a line and send it."""
        self.press(f"{line}\r")

    def wait_for(self, *expected):
        """Read until all texts are shown, in this order, from where something was typed last."""
        deadline = time.monotonic() + LIMIT_S
        while not _in_order(expected, shown := "\n".join(self.lines()[self._typed_at :])):
            assert time.monotonic() < deadline, f"{expected} is not shown; instead:\n{shown.rstrip()[-1500:]}"
            self._read()

    def ends_within(self, seconds):
        """Read on for so long; whether the program has ended."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                self._read()
        except EOFError:
            return True
        return False

    def ended(self):
        """Read to the end; the status of the program, negative for a signal."""
        assert self.ends_within(LIMIT_S), f"it goes on:\n{self.text()[-1500:]}"
        self.child.wait()  # its terminal is closed; it may still be ending
        self.child.close()
        return self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus

    def _finish_drawing(self):
        """Read on while the cursor is hidden: it goes through all lines then, and comes back to the prompt last."""
        deadline = time.monotonic() + DRAWING_S
        while self._emulator.cursor.hidden and time.monotonic() < deadline:
            self._read()

    def _read(self):
        try:
            piece = self.child.read_nonblocking(65_536, timeout=1)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            raise EOFError(self.text()[-1500:]) from None
        self.raw += piece
        self._stream.feed(piece)


def _in_order(texts, shown):
    rest = shown
    for text in texts:
        _, found, rest = rest.partition(text)
        if not found:
            return False
    return True


@contextmanager
def screen(command, *, columns=80, lines=24, **variables):
    """A program in a terminal of this size, ended after the block."""
    environment = {**os.environ, "TERM": "xterm-256color", **variables}
    for name in ("NO_COLOR", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY"):
        if name not in variables:
            environment.pop(name, None)
    command = [*map(str, command)]
    size = (lines, columns)
    with default_interrupt():
        child = pexpect.spawn(
            command[0], command[1:], dimensions=size, env=environment, encoding="utf-8", codec_errors="replace"
        )
    child.delaybeforesend = None
    try:
        yield Screen(child, columns, lines)
    finally:
        try:
            child.close(force=True)
        except pexpect.ExceptionPexpect:  # a busy machine ends it later than pexpect looks
            child.wait()
