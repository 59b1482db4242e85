"""Messages to a loop in a worker process, as bytes, and messages that only a worker takes.

    Load                                      -> the Plan
    Estimate                                  -> a Plan or Survey
    messages of `edgekv.loop.loop_messages`   -> as there

Messages are tuples, and travel pickled: both ends are one program, joined by pipes that no other process can reach. A
piece of text and a Next go with every token. They travel as a letter and their bytes, because that is less code. Before
each message stand its number, which its answer carries, too, and the client's.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.errors import ConfigError, WorkerError
from edgekv.loop.loop_messages import Next
from edgekv.planning.choice import Request
from edgekv.policies.registry import is_registered

BEAT_S = 0.25  # seconds between two signs of life from the worker


class Load(NamedTuple):
    """Load a model. `request`: from `pack`. `mark`: bytes that its snapshots carry."""

    path: Path
    request: bytes
    mark: bytes


class Estimate(NamedTuple):
    """Plan a model without loading it; with `around` find other settings that would fit, too."""

    path: Path
    request: bytes
    around: bool


NUMBERS = struct.Struct("<QQ")  # numbers of a message and of the client that waits for its answer
TEXT, NEXT = b"TN"  # first bytes; a pickle begins with another byte


def encode(message: object) -> bytes:
    """Return the bytes of a message or an answer, for `decode` at the other end."""
    if type(message) is str:
        return b"T" + message.encode("utf-8", "surrogatepass")
    if type(message) is Next:
        return b"N" + message.number.to_bytes(8, "little")
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def decode(data: bytes | memoryview) -> Any:
    """Return the message of these bytes."""
    kind = data[0]
    if kind == TEXT:
        return str(data[1:], "utf-8", "surrogatepass")
    if kind == NEXT:
        return Next(int.from_bytes(data[1:], "little"))
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
    except Exception as error:  # pickling runs the code of any object that it meets
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


def portable(error: BaseException) -> BaseException:
    """Return the error, or a WorkerError of the same text if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"the worker process reports {type(error).__name__}: {error}")
    return error
