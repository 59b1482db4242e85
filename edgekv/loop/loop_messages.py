"""The messages between a client and the loop that owns the cells; every message has one answer.

    NewConversation, LoadConversation  -> None
    ForkConversation, Close            -> None
    Call                               -> the value of the property, or the result of the call
    MoveCeiling                        -> the Plan under the other ceiling
    FollowGrammars                     -> the Plan with grammars
    Reply, Next, Abort                 -> the next Progress or piece of text (str), or Ended with the reply
    Cancel, Stop                       -> None
    any of them                        -> Raised, instead

The loop works on a reply from a Reply or Next to the answer, and then waits: it never runs ahead of its client. Clients
number conversations and replies. Many may be open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from edgekv.generation.request import GenerationRequest, Logging, RewindRequest
from edgekv.generation.stats import Stats

CLOSED = "this session is closed; open another with Runtime.session()"

OF_ONE_REPLY = 1 << 63  # bit of the numbers of clients that are no threads, and ask for nothing after their reply
# calls before which a reply ends that its client has forgotten, all calls that need the cells, and calls of the engine
# that change the cells of all conversations
OF_IDLE = frozenset({"snapshot", "restore", "save", "keep"})
WITH_CELLS = OF_IDLE | {"kept_positions", "budgets", "coverage"}
OF_ALL_CELLS = frozenset({"keep_beginnings"})


class NewConversation(NamedTuple):
    """Begin conversation `number`."""

    number: int
    system: str | None
    logging: Logging | None = None


class LoadConversation(NamedTuple):
    """Begin conversation `number` with a session, by its absolute path; it may take the cells of another one.

    keep: append to the session's folder
    """

    number: int
    path: Path
    instead_of: int | None
    keeps_log: bool
    keep: bool


class ForkConversation(NamedTuple):
    """Begin conversation `number` with all that another one has read and said."""

    number: int
    origin: int


class Close(NamedTuple):
    """Forget conversation `number`. A reply of it ends as if it was cancelled."""

    number: int


class Call(NamedTuple):
    """Read a property of a conversation, or call one of its methods. `conversation`: None = the engine"""

    conversation: int | None
    name: str
    arguments: tuple[Any, ...] = ()


class MoveCeiling(NamedTuple):
    """Go under another ceiling, between two steps. It is answered when the memory is back."""

    ceiling_bytes: int


class FollowGrammars(NamedTuple):
    """Plan memory for replies that follow grammars, between two steps, under the ceiling of now."""


class Reply(NamedTuple):
    """Begin reply `number`.

    folder: the client's working directory, for relative paths; None = the request has none
    stats: take the figures of the reply
    reports: answer with the Progress of reading, too
    """

    number: int
    conversation: int
    request: GenerationRequest | RewindRequest
    folder: str | None
    stats: Stats
    reports: bool


class Next(NamedTuple):
    """Go on with a reply."""

    number: int


class Abort(NamedTuple):
    """End a reply that is no longer iterated."""

    number: int


class Cancel(NamedTuple):
    """Bring the reply of a conversation to its end, at the next block or token."""

    conversation: int


class Stop(NamedTuple):
    """Cancel what is at work, and free everything. Later messages are refused."""


class Ended(NamedTuple):
    """A reply is over. `stats`: None = it had ended before."""

    stats: Stats | None
    error: BaseException | None = None


class Raised(NamedTuple):
    """The message failed with this error."""

    error: BaseException
