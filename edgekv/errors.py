"""Every error edgekv raises on purpose.

    EdgeKVError
    |-- ConfigError                an option has a value that cannot work
    |   |-- PolicyError            a policy spec is misspelt or impossible
    |   |-- GrammarError           a grammar or a JSON schema cannot be honoured
    |   `-- BudgetError            the budget cannot hold the cells that must be kept
    |-- InputError                 a prompt or a file cannot be read as text
    |   `-- PromptLengthError      a prompt has more tokens than may be read
    |-- CeilingError               the plan does not fit the memory ceiling
    |-- CeilingExceededError       the process went over its ceiling, although the plan fitted
    |-- ModelError                 a model file cannot be used
    |   |-- ModelNotFoundError     no file and no known model has that name
    |   |-- AmbiguousModelError    several models have that name
    |   |-- DownloadError          a hub of models does not give a file, or it cannot be stored
    |   |-- InvalidModelError      the file is not a whole, consistent GGUF model
    |   `-- UnsupportedModelError  the model is sound, but edgekv cannot run it yet
    |-- SessionError               a session is used out of turn
    |   |-- SwapError              there is no room to swap out the session that has the cells
    |   `-- SessionEvictedError    the state of a session is gone
    |-- SessionFileError           a saved session cannot be written, read, or gone on with here
    |-- ArchiveError               an archive cannot be written or read, or is damaged
    |-- DeviceError                a server that lends its device does not answer, or not as it should
    |-- NativeError                the native library is missing, foreign, or reports a failure
    `-- WorkerError                the worker process of an isolated runtime died, or no longer responds

A message names the value, the limit and the remedy. It spells arguments as a program does, `name=value`; the command
line shows them as its options (`cli/wording.py`).
"""

from __future__ import annotations

__all__ = [
    "AmbiguousModelError",
    "ArchiveError",
    "BudgetError",
    "CeilingError",
    "CeilingExceededError",
    "ConfigError",
    "DeviceError",
    "DownloadError",
    "EdgeKVError",
    "GrammarError",
    "InputError",
    "InvalidModelError",
    "ModelError",
    "ModelNotFoundError",
    "NativeError",
    "PolicyError",
    "PromptLengthError",
    "SessionError",
    "SessionEvictedError",
    "SessionFileError",
    "SwapError",
    "UnsupportedModelError",
    "WorkerError",
]


class EdgeKVError(Exception):
    """Base of all errors that edgekv raises on purpose. They can be pickled, with all attributes."""

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[EdgeKVError], args: tuple[object, ...]) -> EdgeKVError:
    """Return an error made without its __init__, which may take more than `args`."""
    return kind.__new__(kind, *args)


class ConfigError(EdgeKVError, ValueError):
    """An option has a value that cannot work."""


class PolicyError(ConfigError):
    """A policy spec is misspelt or impossible."""


class BudgetError(ConfigError):
    """The budget cannot hold the cells that must be kept."""


class GrammarError(ConfigError):
    """A grammar or a JSON schema cannot be honoured."""


class InputError(EdgeKVError, ValueError):
    """A prompt or a file cannot be read as text, or is too long."""


class PromptLengthError(InputError):
    """A prompt ends at token `n_tokens`, and `limit` are the most that may be read."""

    def __init__(self, message: str, *, n_tokens: int, limit: int) -> None:
        super().__init__(message)
        self.n_tokens = n_tokens
        self.limit = limit


class CeilingError(EdgeKVError):
    """The plan does not fit the memory ceiling.

    `required_bytes` is what the plan needs, `ceiling_bytes` is what it may have.
    """

    def __init__(self, message: str, *, required_bytes: int, ceiling_bytes: int) -> None:
        super().__init__(message)
        self.required_bytes = required_bytes
        self.ceiling_bytes = ceiling_bytes


class CeilingExceededError(EdgeKVError):
    """The process went over its memory ceiling, although the plan fitted. The reply has ended; the session goes on.

    `planned_bytes`, `measured_bytes` and `ceiling_bytes` are those of the whole process.
    """

    def __init__(self, message: str, *, planned_bytes: int, measured_bytes: int, ceiling_bytes: int) -> None:
        super().__init__(message)
        self.planned_bytes = planned_bytes
        self.measured_bytes = measured_bytes
        self.ceiling_bytes = ceiling_bytes


class ModelError(EdgeKVError):
    """A model file cannot be used."""


class ModelNotFoundError(ModelError):
    """No file and no known model has that name."""


class AmbiguousModelError(ModelError):
    """Several models have that name."""


class DownloadError(ModelError):
    """A hub of models does not give a file, or it cannot be stored. The next download resumes from the fetched part."""


class InvalidModelError(ModelError):
    """The file is not a whole, consistent GGUF model."""


class UnsupportedModelError(ModelError):
    """The model is sound, but edgekv cannot run it yet."""


class SessionError(EdgeKVError):
    """A session is used out of turn."""


class SwapError(SessionError):
    """There is no room to swap out the session that has the cells. No session has changed."""


class SessionEvictedError(SessionError):
    """The state of a session is gone: `swap_full="evict"` evicted it, or its swap file is damaged."""


class SessionFileError(EdgeKVError):
    """A saved session cannot be written, read, or gone on with here."""


class ArchiveError(EdgeKVError):
    """An archive cannot be written or read, or is not what was written."""


class DeviceError(EdgeKVError):
    """A server that lends its device does not answer, or not as it should."""


class NativeError(EdgeKVError):
    """The native library is missing, foreign, or reports a failure."""


class WorkerError(EdgeKVError):
    """The worker process of an isolated runtime died, or no longer responds."""
