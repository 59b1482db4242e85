"""Requests to an application in this process, without a network."""

from __future__ import annotations

import json

import httpx
from waiting import until

JSON = {"Content-Type": "application/json"}


async def fetched(application, path, body=None, *, method=None, **further):
    """The answer to one request: a GET without a body, a POST of JSON with one."""
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        if isinstance(body, (bytes, str)):
            further = {"content": body, "headers": JSON} | further
        elif body is not None:
            further = {"json": body} | further
        return await client.request(method or ("GET" if body is None else "POST"), path, **further)


def said(answer):
    """The events of a stream: JSON values, and the words that are none."""
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) if line.startswith("{") else line for line in lines]


def until_nothing_is_held(application):
    """Wait until no request holds memory: what a reply held is freed by its thread, after the client has its end."""
    until(lambda: application.state.memory.held == 0, "the end of what requests hold", limit_s=60)
