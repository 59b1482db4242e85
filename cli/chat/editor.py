"""The line editor of a chat on a terminal, by prompt_toolkit: history, several lines, long pastes, completion."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input, create_pipe_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import DummyOutput, Output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from .completion import Arguments, candidates
from .input_history import History
from .lines import Typed, is_open, unquoted

LONG_PASTE = 1000  # characters; a longer paste is not drawn
MANY_LINES = 20  # a paste of more lines is not drawn either

_MARK = re.compile(r" ?\[paste (\d+): [\d,]+ characters\] ?")
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse ansibrightblack", "bottom-toolbar.text": ""})


class Editor:
    """Reads messages and commands. Enter sends, Alt-Enter begins a line, Tab completes, three quotes span lines.

    A long paste is held aside, and a mark stands for it, because every key redraws the whole input.
    """

    several_lines = 'Alt-Enter begins the next, or """ before the first and after the last, or paste them'

    def __init__(
        self,
        history: History | None,
        commands: Mapping[str, Arguments | None],
        *,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        """history: of earlier chats, which this one adds to; None = this chat's own alone"""
        self._pastes: list[str] = []
        self._offered = ""
        self._session: PromptSession[str] = PromptSession(
            "> ",
            multiline=True,
            prompt_continuation="  ",
            key_bindings=self._keys(),
            completer=_Completer(commands),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            history=_Remembered(history),
            style=_STYLE,
            include_default_pygments_style=False,
            enable_suspend=True,
            input=input,
            output=output or _own_output(),
        )

    def offer(self, text: str) -> bool:
        """Begin the next line with a text; return True, since that is possible."""
        self._offered = text
        return True

    def read(self, bottom_line: Callable[[int], str]) -> Typed:
        """Return the next message or command. Raises EOFError for Ctrl-D, and KeyboardInterrupt for Ctrl-C.

        bottom_line: makes the line below the input, for a number of columns
        """
        self._pastes.clear()
        width = self._session.output.get_size().columns
        line = bottom_line(width - 1)
        offered, self._offered = self._offered, ""
        text = self._session.prompt(bottom_toolbar=FormattedText([("", line)]), default=offered)
        numbers = [int(number) - 1 for number in _MARK.findall(text)]
        pastes = tuple(self._pastes[i] for i in dict.fromkeys(numbers) if 0 <= i < len(self._pastes))
        return Typed(unquoted(_without_marks(text)), pastes)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add(Keys.Enter)
        def _send(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if is_open(buffer.text):
                buffer.newline(copy_margin=False)
            else:
                buffer.validate_and_handle()

        @keys.add(Keys.Escape, Keys.Enter)
        def _break(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add(Keys.BracketedPaste)
        def _paste(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if len(text) > LONG_PASTE or text.count("\n") > MANY_LINES:
                self._pastes.append(text)
                text = f"[paste {len(self._pastes)}: {len(text):,} characters]"
            event.current_buffer.insert_text(text)

        return keys


def _own_output() -> Output | None:
    """Return the output of this terminal; None = prompt_toolkit chooses."""
    if sys.platform == "win32":
        return None
    from prompt_toolkit.output.vt100 import Vt100_Output

    class Unasked(Vt100_Output):
        """A terminal that is not asked for its cursor: over a slow line the answer would come into what is typed."""

        def get_rows_below_cursor_position(self) -> int:
            return 1  # the lines that are drawn make room for themselves

    return Unasked.from_pty(sys.stdout)


def _without_marks(text: str) -> str:
    return _MARK.sub(" ", text).strip() if _MARK.search(text) else text


class _Remembered(InMemoryHistory):
    """The history of a chat, which a file remembers without long pastes."""

    def __init__(self, history: History | None) -> None:
        super().__init__(history.entries() if history else [])
        self._file = history

    def append_string(self, string: str) -> None:
        """Remember an entry."""
        entry = _without_marks(string)
        if entry.strip():
            super().append_string(entry)
            if self._file is not None:
                self._file.add(entry)


class _Completer(Completer):
    def __init__(self, commands: Mapping[str, Arguments | None]) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for text, n in candidates(document.text_before_cursor, self._commands):
            yield Completion(text, start_position=-n)


def warm_up() -> None:
    """Type a message into a pipe, with all that an editor does: prompt_toolkit allocates much at its first use."""
    typed = "/\t\x15" + "one\x1b\rtwo \x1b[200~" + "word " * (LONG_PASTE // 2) + "\x1b[201~\r"
    with create_pipe_input() as keys:
        keys.send_text(typed)
        editor = Editor(None, {"/a": None, "/b": None}, input=keys, output=DummyOutput())
        editor.read(lambda width: "line"[:width])
