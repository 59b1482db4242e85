"""What host and worker say to each other: every message has one answer.

Messages are tuples, and travel pickled: both ends are one program, joined by pipes that nobody else can reach. A piece
of text and the wish for the next one go with every token. They travel as a letter and their bytes: that is less code.

    Load                                      -> the Plan
    Estimate                                  -> a Plan or Survey
    NewConversation, LoadConversation, Close  -> None
    Call                                      -> what it asked for
    Reply, Next, Abort                        -> the next Progress or piece of text (str), or Ended with the reply
    any of them                               -> Raised, instead

The worker works on a reply from a Reply or Next to the answer, and then waits: it never runs ahead of the host.
Conversations and replies have numbers, which the host gives them. Many may be open; the host asks for what needs the
cells on behalf of one conversation at a time.
"""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.engine.request import GenerationRequest, Logging, RewindRequest
from edgekv.engine.stats import Stats
from edgekv.errors import ConfigError, WorkerError
from edgekv.planning.choice import Request
from edgekv.policies.registry import is_registered

BEAT_S = 0.25  # between two signs of life from the worker


class Load(NamedTuple):
    """Load a model. `request`: from `pack`. `mark`: what its snapshots carry."""

    path: Path
    request: bytes
    mark: bytes


class Estimate(NamedTuple):
    """Say what would be loaded, and with `around` what else would fit."""

    path: Path
    request: bytes
    around: bool


class NewConversation(NamedTuple):
    """Begin conversation `number`."""

    number: int
    system: str | None
    logging: Logging | None = None


class LoadConversation(NamedTuple):
    """Begin conversation `number` with a session file, by its absolute path; it may take the cells of another one."""

    number: int
    path: Path
    instead_of: int | None
    keeps_log: bool


class Close(NamedTuple):
    """Forget conversation `number`, which has no open reply."""

    number: int


class Call(NamedTuple):
    """Ask for a property of a conversation, or call one of its methods. None = of the engine"""

    conversation: int | None
    name: str
    arguments: tuple[Any, ...] = ()


class Reply(NamedTuple):
    """Begin reply `number`. `folder`: the host's, where relative paths begin; None = no path is in it."""

    number: int
    conversation: int
    request: GenerationRequest | RewindRequest
    folder: str | None


class Next(NamedTuple):
    """Go on with a reply, or with `cancelled` bring it to its end."""

    number: int
    cancelled: bool


class Abort(NamedTuple):
    """End a reply that is no longer iterated."""

    number: int


class Ended(NamedTuple):
    """A reply is over. `stats` are None where it had ended before."""

    stats: Stats | None
    error: Exception | None = None


class Raised(NamedTuple):
    """What was asked for failed."""

    error: Exception


TEXT, NEXT, CANCEL = b"TPC"  # first bytes; that of a pickle is another one


def encode(message: object) -> bytes:
    """A message or an answer, for `decode` at the other end; what is encoded stays as it is."""
    if type(message) is bytes:
        return message
    if type(message) is str:
        return b"T" + message.encode("utf-8", "surrogatepass")
    if type(message) is Next:
        return (b"C" if message.cancelled else b"P") + message.number.to_bytes(8, "little")
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def decode(data: bytes | memoryview) -> Any:
    """The message again."""
    kind = data[0]
    if kind == TEXT:
        return str(data[1:], "utf-8", "surrogatepass")
    if kind in (NEXT, CANCEL):
        return Next(int.from_bytes(data[1:], "little"), kind == CANCEL)
    return pickle.loads(data)


def pack(request: Request) -> bytes:
    """A request for a worker to unpack. Raises ConfigError for a policy that cannot leave this process.

    A policy travels as it was given, as a spelling or an object. If only this process knows its name, the scorer itself
    travels.
    """
    options = request.options
    named = [field.name for field in fields(options) if field.init and field.name not in request.open]
    given = {name: getattr(options, name) for name in named}
    for name, policy in (("policy", options.parsed_policy), ("focus_policy", options.parsed_focus)):
        if isinstance(given.get(name), str) and is_registered(policy.base):
            given[name] = policy
    try:
        return pickle.dumps(given)
    except Exception as error:  # pickling runs the code of whatever object it meets
        raise _immobile(error) from error


def unpack(packed: bytes) -> Request:
    """The request again. Raises ConfigError."""
    try:
        given = pickle.loads(packed)
    except Exception as error:
        raise _immobile(error) from error
    return Request.of(**given)


def _immobile(error: Exception) -> ConfigError:
    return ConfigError(
        f"the policy cannot go to a worker process: {error}; define its scorer at the top level of a module that can "
        "be imported, or open the runtime without isolated=True"
    )


def portable(error: Exception) -> Exception:
    """The error, or where it cannot be pickled, one that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"the worker process reports {type(error).__name__}: {error}")
    return error
