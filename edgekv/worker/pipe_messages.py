"""The messages between host and worker; every message has one answer.

Messages are tuples, and travel pickled: both ends are one program, joined by pipes that no other process can reach. A
piece of text and a Next go with every token. They travel as a letter and their bytes, because that is less code.

    Load                                      -> the Plan
    Estimate                                  -> a Plan or Survey
    NewConversation, LoadConversation, Close  -> None
    Call                                      -> the value of the property, or the result of the call
    Reply, Next, Abort                        -> the next Progress or piece of text (str), or Ended with the reply
    any of them                               -> Raised, instead

The worker works on a reply from a Reply or Next to the answer, and then waits: it never runs ahead of the host.
The host numbers conversations and replies. Many may be open; the host makes calls that need the cells for one
conversation at a time.
"""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.errors import ConfigError, WorkerError
from edgekv.generation.request import GenerationRequest, Logging, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.planning.choice import Request
from edgekv.policies.registry import is_registered

BEAT_S = 0.25  # seconds between two signs of life from the worker


class Load(NamedTuple):
    """Load a model. `request`: from `pack`. `mark`: bytes that its snapshots carry."""

    path: Path
    request: bytes
    mark: bytes


class Estimate(NamedTuple):
    """Plan a model without loading it, and with `around` find what else would fit."""

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
    """Read a property of a conversation, or call one of its methods. `conversation`: None = the engine"""

    conversation: int | None
    name: str
    arguments: tuple[Any, ...] = ()


class Reply(NamedTuple):
    """Begin reply `number`. `folder`: the host's working directory, for relative paths; None = the request has none."""

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
    """A reply is over. `stats`: None = it had ended before."""

    stats: Stats | None
    error: Exception | None = None


class Raised(NamedTuple):
    """The message failed with this error."""

    error: Exception


TEXT, NEXT, CANCEL = b"TPC"  # first bytes; a pickle begins with another byte


def encode(message: object) -> bytes:
    """Return the bytes of a message or an answer, for `decode` at the other end; bytes stay as they are."""
    if type(message) is bytes:
        return message
    if type(message) is str:
        return b"T" + message.encode("utf-8", "surrogatepass")
    if type(message) is Next:
        return (b"C" if message.cancelled else b"P") + message.number.to_bytes(8, "little")
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def decode(data: bytes | memoryview) -> Any:
    """Return the message of these bytes."""
    kind = data[0]
    if kind == TEXT:
        return str(data[1:], "utf-8", "surrogatepass")
    if kind in (NEXT, CANCEL):
        return Next(int.from_bytes(data[1:], "little"), kind == CANCEL)
    return pickle.loads(data)


def pack(request: Request) -> bytes:
    """Return the bytes of a request, for `unpack` in a worker. Raises ConfigError for a policy that cannot be pickled.

    A policy travels as it was given, as a spec or an object. If its name is registered only in this process, the scorer
    itself travels.
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
    """Return the request of these bytes. Raises ConfigError."""
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
    """Return the error, or a WorkerError of the same text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"the worker process reports {type(error).__name__}: {error}")
    return error
