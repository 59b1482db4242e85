"""Lines of a batch through the endpoints of OpenAI's API: a line becomes a request, and its events a reply."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from edgekv.api import chat_completions, completions, responses
from edgekv.api.api_errors import ApiError
from edgekv.api.body import parsed
from edgekv.api.endpoint import Endpoint
from edgekv.api.json_stream import json_parts
from edgekv.api.openai_common import error_body
from edgekv.api.reply_request import Event, ReplyRequest
from edgekv.api.server_settings import Settings

from .requests import Request
from .results_file import digest_of

USED = (chat_completions.endpoint, completions.endpoint, responses.endpoint)  # endpoints that batches may use
ENDPOINTS: dict[str, Endpoint[Any]] = {endpoint.path: endpoint for endpoint in USED}
SETTINGS = Settings()
SEED_DIGITS = 7  # hex digits


class Reply(NamedTuple):
    """A reply of an endpoint: an HTTP status and a body of JSON."""

    status: int
    body: dict[str, Any]


def parse(request: Request) -> ReplyRequest | Reply:
    """Return the request to the model; or the reply, for a line that the endpoint refuses.

    A request without a seed gets one that follows from its custom_id, so that the reply is the same whoever makes it.
    """
    try:
        _, _, reply_request = _read(request)
    except ApiError as error:
        return reply_of(error)
    seed = reply_request.sampling.seed
    if seed is None:
        seed = int(digest_of(request.custom_id, digits=SEED_DIGITS), 16)
    return replace(reply_request, sampling=replace(reply_request.sampling, seed=seed))


def render(request: Request, events: Sequence[Event], model: str) -> Reply:
    """Return the reply to a request, made of the events of the model's reply. model: its name for clients"""
    endpoint, body, reply_request = _read(request)
    renderer = endpoint.render(body, reply_request, model)
    for event in events:
        renderer.add(event)
    whole = renderer.whole()
    whole.pop("timings", None)  # results do not depend on who makes them, and how fast
    return Reply(200, json.loads(b"".join(json_parts(whole))))


def reply_of(error: ApiError) -> Reply:
    """Return the reply to a request that failed."""
    return Reply(error.status, error_body(error))


def _read(request: Request) -> tuple[Endpoint[Any], Any, ReplyRequest]:
    """Return the endpoint of a line, its body and its request to the model. Raises ApiError."""
    if request.method != "POST":
        raise ApiError(400, "invalid_method", f"method is {request.method!r}; write 'POST'", param="method")
    if not isinstance(request.url, str) or request.url not in ENDPOINTS:
        known = ", ".join(ENDPOINTS)
        raise ApiError(400, "invalid_url", f"url is {request.url!r}; possible: {known}", param="url")
    if not isinstance(request.body, dict):
        raise ApiError(400, "invalid_value", "body is no JSON object; give what the endpoint takes", param="body")
    if request.body.get("stream"):
        raise ApiError(
            400, "unsupported_value", "the answers of a batch are no streams; leave 'stream' out", param="stream"
        )
    endpoint = ENDPOINTS[request.url]
    body = parsed(endpoint.body, json.dumps(request.body).encode())
    reply_request = endpoint.parse(body, SETTINGS)
    if reply_request.n_choices > 1:
        what = "a line of a batch has one reply; write a line for each prompt, and for each of n"
        raise ApiError(400, "unsupported_value", what, param="prompt" if body.n in (None, 1) else "n")
    return endpoint, body, reply_request
