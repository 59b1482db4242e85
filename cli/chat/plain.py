"""Input and replies as they are: in pipes, on terminals that cannot be drawn on, and with `--plain`."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Callable
from typing import Any

from edgekv.cli.render import printable

from .lines import Typed, is_open, unquoted


class PlainInput:
    """Reads lines as a terminal or a pipe gives them. On a terminal Python's readline edits them, if it is there."""

    several_lines = '""" before the first and after the last'

    def __init__(self) -> None:
        """Make it before a plan, which counts readline."""
        self._is_terminal = sys.stdin.isatty()
        self._readline: Any = None
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # the session refuses such a text with a reason
        if self._is_terminal:
            with contextlib.suppress(ImportError):
                self._readline = importlib.import_module("readline")  # `input` uses it
        if self._readline is not None and "libedit" not in (self._readline.__doc__ or ""):
            self._readline.parse_and_bind("set enable-bracketed-paste on")  # lines that are pasted are one message
            self.several_lines += ", or paste them"

    def offer(self, text: str) -> bool:
        """Begin the next line with a text; return False if that is not possible."""
        if self._readline is None or "\n" in text:
            return False
        self._readline.set_startup_hook(lambda: self._readline.insert_text(text))
        return True

    def read(self, _bottom_line: Callable[[int], str]) -> Typed:
        """Return the next message or command. Raises EOFError at the end, and KeyboardInterrupt for Ctrl-C."""
        try:
            text = input("> " if self._is_terminal else "")
        finally:
            if self._readline is not None:
                self._readline.set_startup_hook(None)
        while is_open(text):
            try:
                text += "\n" + input("  " if self._is_terminal else "")
            except EOFError:
                break
        return Typed(unquoted(text))


class PlainReply:
    """A reply as it comes, but a terminal is given no control characters."""

    def __enter__(self) -> PlainReply:
        self._checked = printable if sys.stdout.isatty() else str
        return self

    def add(self, piece: str) -> None:
        """Write a piece."""
        print(self._checked(piece), end="", flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            print(flush=True)
