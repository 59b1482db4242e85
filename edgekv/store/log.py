"""The token ids of a session, on the disk, and the role that each range of them belongs to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .temp_array import WINDOW, TempArray

TEMPLATE = "template"  # role of the chat template's tokens
ROLES = (TEMPLATE, "system", "user", "assistant", "text", "tool")
OPENING = (TEMPLATE, "system")  # roles before the first content
STATES = ("new", "open", "user", "assistant", "text")


class Turn(NamedTuple):
    """Tokens [start, stop) of a session that belong to one role.

    role: "system", "user", "assistant" (what was said), "tool" (the result of a call), or "text" (read as it stands,
        without a chat template)
    """

    role: str
    start: int
    stop: int


class Mark(NamedTuple):
    """The position where tokens of a role begin. `state`: of the turns (`prompt.turns.Turns`) after such a token."""

    position: int
    role: str
    state: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LogCopy:
    """A whole log in memory: ids (n,) int32, and marks (n, 3) int32, as `TokenLog.copy` makes them."""

    tokens: npt.NDArray[np.int32]
    marks: npt.NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes + self.marks.nbytes


class TokenLog:
    """The ids of all tokens of a session in order, 4 bytes each in a temporary file, and marks between them.

    Raises SessionFileError if the folder (None = that of TMPDIR) takes no file, or has no more room.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._tokens = TempArray(folder)
        self._marks = TempArray(folder)
        self._coming: tuple[int, list[Mark]] = 0, []  # tokens that were fed before a prompt, and the prompt's marks
        self._n_unchanged = 0  # tokens that are as they were, with their marks, when the whole log was recorded last
        self._n_recorded = -1, -1  # tokens and marks at that time

    def __len__(self) -> int:
        return len(self._tokens)

    def close(self) -> None:
        """Remove the files."""
        self._tokens.close()
        self._marks.close()

    # ---- tokens ----

    def make_room(self, n: int) -> None:
        """Make room for n more tokens, and their marks."""
        self._tokens.make_room(n)
        if self._coming[1]:
            self._marks.make_room(min(3 * len(self._coming[1]), WINDOW))

    def follow(self, tokens: Sequence[int], n_past: int) -> None:
        """Append the last tokens up to position n_past that the log does not have yet."""
        n_new = n_past - len(self)
        if n_new > 0:
            self._tokens.append(tokens[-n_new:])
        self._note_coming(n_past)

    def cut(self, n: int) -> None:
        """Keep the first n tokens, and drop announced marks."""
        self._note_coming(n)
        self._tokens.cut(n)
        self._n_unchanged = min(self._n_unchanged, n)
        self._forget_marks(n + 1)
        self._coming = n, []

    def tokens(self, start: int, stop: int) -> Iterator[int]:
        """Yield the tokens in [start, stop), read piece by piece."""
        for first in range(start, stop, WINDOW):
            yield from self.read(first, min(stop, first + WINDOW)).tolist()

    def read(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the tokens in [start, stop), (n,)."""
        return self._tokens.read(start, stop)

    def common(self, tokens: Iterable[int]) -> tuple[int, int]:
        """Return how many of these tokens the log begins with, and their number."""
        coming = iter(tokens)
        n_common = 0
        for ours, theirs in itertools.zip_longest(self.tokens(0, len(self)), coming):
            if ours != theirs:
                rest = 0 if theirs is None else 1 + sum(1 for _ in coming)
                return n_common, n_common + rest
            n_common += 1
        return n_common, n_common

    def beginning(self, tokens: Iterable[int]) -> int:
        """Return how many of these tokens the log begins with; takes none after the first that differs."""
        pairs = zip(self.tokens(0, len(self)), tokens, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    # ---- marks ----

    def mark(self, position: int, role: str, state: str) -> None:
        """Note the role of the tokens from here on. Marks at this position and later ones are dropped."""
        self._forget_marks(position)
        self._marks.make_room(3)
        self._marks.append((position, ROLES.index(role), STATES.index(state)))

    def expect(self, n_past: int) -> None:
        """Begin to take the marks of a prompt that is read after n_past tokens (`announce`)."""
        self._coming = n_past, []

    def announce(self, position: int, role: str, state: str) -> None:
        """Note as `mark` does, but only once the prompt's tokens before this one are fed.

        So a prompt that is never read changes no mark, even if its marks would replace earlier ones.
        """
        coming = self._coming[1]
        while coming and coming[-1].position >= position:
            coming.pop()
        coming.append(Mark(position, role, state))

    def state_at(self, n: int) -> str:
        """Return the state of the turns after the first n tokens. If these end with a prompt, its reply begins."""
        i = self._n_marks_below(n + 1)
        while i > 0:
            mark = self._mark(i - 1)
            if mark.role == "assistant":
                return mark.state
            if mark.position < n:
                return mark.state if self._has_content(n) else "opening"
            i -= 1
        return "new"

    def _has_content(self, n: int) -> bool:
        """Return True if the first n tokens hold more than an opening."""
        marks = map(self._mark, range(len(self._marks) // 3))
        first = next((mark for mark in marks if mark.role not in OPENING), None)
        return first is not None and first.position < n

    def _note_coming(self, n_past: int) -> None:
        """Note the announced marks of tokens that are fed. After an exception it can be called again."""
        first, coming = self._coming
        due = [mark for mark in coming if mark.position <= n_past] if n_past > first else []
        if due:
            self._forget_marks(due[0].position, following=due[0].role)
            rows = [(mark.position, ROLES.index(mark.role), STATES.index(mark.state)) for mark in due]
            self._marks.extend(np.array(rows, np.int32).reshape(-1))
            self._coming = first, coming[len(due) :]

    def turns(self, n_said: int = 0) -> Iterator[Turn]:
        """Yield the turns, without the template's tokens. The beginning of a turn is apart from its rest.

        n_said: tokens that were generated and not fed yet; they belong to the last turn
        """
        turn: Turn | None = None
        is_beginning = False
        for mark, stop in self._ranges(n_said):
            if mark.role == TEMPLATE or mark.position == stop:
                continue
            goes_on = mark.state == "open" or not is_beginning
            is_beginning = mark.state == "open"
            if turn is not None and goes_on and (turn.role, turn.stop) == (mark.role, mark.position):
                turn = turn._replace(stop=stop)
                continue
            if turn is not None:
                yield turn
            turn = Turn(mark.role, mark.position, stop)
        if turn is not None:
            yield turn

    def _ranges(self, n_said: int) -> Iterator[tuple[Mark, int]]:
        """Yield the marks, each with the position at which the next one begins."""
        n = len(self._marks) // 3
        for i in range(n):
            yield self._mark(i), self._mark(i + 1).position if i + 1 < n else len(self) + n_said

    def _mark(self, i: int) -> Mark:
        position, role, state = self._marks.read(3 * i, 3 * i + 3).tolist()
        return Mark(position, ROLES[role], STATES[state])

    def _n_marks_below(self, position: int) -> int:
        """Return how many marks come before a position; marks ascend."""
        n = len(self._marks) // 3
        while n > 0 and self._mark(n - 1).position >= position:
            n -= 1
        return n

    def _forget_marks(self, position: int, following: str = "assistant") -> None:
        """Forget the marks from a position on. A reply without tokens keeps its own if another role follows."""
        n_kept = self._n_marks_below(position)
        if following != "assistant" and n_kept < len(self._marks) // 3:
            n_kept += self._mark(n_kept)[:2] == (position, "assistant")
        self._marks.cut(3 * n_kept)
        self._n_unchanged = min(self._n_unchanged, position)

    # ---- records of changes ----

    @property
    def is_recorded(self) -> bool:
        """True if nothing changed since `note_recorded`."""
        sizes = len(self._tokens), len(self._marks)
        return (self._n_unchanged, self._n_recorded) == (sizes[0], sizes)

    @property
    def n_recorded(self) -> int:
        """The first tokens that are recorded as they are."""
        return self._n_unchanged

    def forget_recorded(self) -> None:
        """Note that nothing is recorded."""
        self._n_unchanged, self._n_recorded = 0, (-1, -1)

    def note_recorded(self) -> None:
        """Note that all of it is recorded elsewhere."""
        self._n_unchanged = len(self)
        self._n_recorded = len(self._tokens), len(self._marks)

    def changes(self) -> Iterator[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.int32]]]:
        """Yield what changed since `note_recorded`: a position, the tokens from there on (n,), and their marks (k, 3).

        The last piece has the marks at the end of the log, too; it may have no tokens.
        """
        for first in range(self._n_unchanged, max(len(self), self._n_unchanged + 1), WINDOW):
            stop = min(len(self), first + WINDOW)
            below = self._n_marks_below(stop if stop < len(self) else stop + 1)
            marks = self._marks.read(3 * self._n_marks_below(first), 3 * below).reshape(-1, 3)
            yield first, self.read(first, stop), marks

    def change(self, first: int, tokens: npt.NDArray[np.int32], marks: npt.NDArray[np.int32]) -> None:
        """Make a change that `changes` has yielded. Raises SessionFileError if the disk is full."""
        self.cut(first)
        self._forget_marks(first)
        self._tokens.extend(tokens)
        self._marks.extend(marks.reshape(-1))

    # ---- the whole log ----

    @property
    def nbytes(self) -> int:
        """Bytes of a copy."""
        return 4 * (len(self._tokens) + len(self._marks))

    def copy(self) -> LogCopy:
        """Copy the whole log into memory."""
        return LogCopy(self.read(0, len(self)), self._marks.read(0, len(self._marks)).reshape(-1, 3))

    def fill(self, copy: LogCopy) -> None:
        """Fill an empty log with a copy."""
        self._tokens.extend(copy.tokens)
        self._marks.extend(copy.marks.reshape(-1))

    def fill_from(self, other: TokenLog) -> None:
        """Fill an empty log with what another one holds. Raises SessionFileError."""
        for name, numbers in other.parts().items():
            for piece in numbers.pieces():
                self.parts()[name].extend(piece)

    def parts(self) -> dict[str, TempArray]:
        """Return the arrays of the log by their names in files: ids, and marks (position, role, state)."""
        return {"tokens": self._tokens, "marks": self._marks}

    def is_sound(self, n_vocab: int) -> bool:
        """Return True if a log from a file holds tokens of a vocabulary, and valid marks."""
        ids = all(len(piece) == 0 or (piece.min() >= 0 and piece.max() < n_vocab) for piece in self._tokens.pieces())
        n, last = len(self._marks) // 3, 0
        if not ids or len(self._marks) % 3:
            return False
        for i in range(n):
            position, role, state = self._marks.read(3 * i, 3 * i + 3).tolist()
            if not (last <= position <= len(self) and 0 <= role < len(ROLES) and 0 <= state < len(STATES)):
                return False
            last = position
        return True


def joined(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns, with adjacent turns of one role joined."""
    joined: Turn | None = None
    for turn in turns:
        if joined is not None and (joined.role, joined.stop) == (turn.role, turn.start):
            joined = joined._replace(stop=turn.stop)
            continue
        if joined is not None:
            yield joined
        joined = turn
    if joined is not None:
        yield joined
