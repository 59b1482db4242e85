"""Define errors of requests without the shape of a protocol. Each API renders them in its own.

A message tells the client what to do. It never holds a path of this machine. Errors whose messages may name a path get
a general message here; the log of the server has the rest.
"""

from __future__ import annotations

import edgekv


class ApiError(Exception):
    """The reason why a request has no reply.

    status: HTTP status
    code: a word for programs; OpenAI's own, if it has one
    param: the field of the body that is wrong, as in "messages.0.role"
    retry_after_s: seconds until it is worth asking again
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


RETRY_S = 5  # seconds, for errors that only time mends

# the first class that matches decides; None = the error's own message, which is about the client's own values
_OF: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (edgekv.PromptLengthError, 400, "context_length_exceeded", None),
    (edgekv.InputError, 400, "invalid_prompt", None),
    (edgekv.GrammarError, 400, "invalid_schema", None),
    (edgekv.UnsupportedModelError, 400, "unsupported_model", "the model has no chat template; ask /v1/completions"),
    (edgekv.ConfigError, 400, "invalid_value", None),
    (
        edgekv.InvalidModelError,
        503,
        "model_unreadable",
        "weights could not be read from the model's file; try again, and if that fails ask whoever runs the server",
    ),
    (
        edgekv.WorkerError,
        503,
        "model_restarted",
        "the process with the model ended; a new one starts, so try again",
    ),
    (edgekv.CeilingExceededError, 503, "memory_ceiling", "memory ran short while the reply was made; try again"),
    (edgekv.CeilingError, 503, "memory_ceiling", "memory does not hold this request now; try again"),
    (edgekv.SessionError, 503, "no_room", "there is no room for another conversation now; try again"),
    (edgekv.SessionFileError, 503, "no_room", "the disk does not take what this request needs; try again later"),
)


def api_error_of(error: Exception) -> ApiError:
    """Translate an error of the runtime for clients."""
    if isinstance(error, ApiError):
        return error
    for kind, status, code, message in _OF:
        if isinstance(error, kind):
            retry = RETRY_S if status == 503 else None
            return ApiError(status, code, str(error) if message is None else message, retry_after_s=retry)
    return ApiError(500, "internal_error", "the server failed; its log says how")


def unsupported(param: str, what: str) -> ApiError:
    """Return the error for a field that is known and not supported here."""
    return ApiError(400, "unsupported_value", f"{what}; leave {param!r} out", param=param)
