"""Endpoints of Ollama's API about the server and its model. They tell no path of the machine."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import edgekv
from edgekv.models.header import TEMPLATE_KEY, TOOLS_TEMPLATE_KEY, Header, header_digest

from .state import ServerState, state_of

API_VERSION = "0.9.6"  # the release of Ollama whose API this is; clients look at it before they use a feature
NEVER = "9999-12-31T23:59:59Z"


def _in_words(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M"


def _details(header: Header) -> dict[str, Any]:
    by_type: Counter[str] = Counter()
    for tensor in header.tensors:
        by_type[tensor.ggml_type.name] += tensor.n_bytes
    return {
        "parent_model": "",
        "format": "gguf",
        "family": header.architecture,
        "families": [header.architecture],
        "parameter_size": _in_words(sum(math.prod(tensor.shape) for tensor in header.tensors)),
        "quantization_level": by_type.most_common(1)[0][0] if by_type else "",
    }


def _began(state: ServerState) -> str:
    return datetime.fromtimestamp(state.started, timezone.utc).isoformat().replace("+00:00", "Z")


def _named(state: ServerState, header: Header) -> dict[str, Any]:
    name, path = f"{state.model_name}:latest", state.pool.runtime.plan.model
    return {
        "name": name,
        "model": name,
        "size": header.file_bytes,
        "digest": header_digest(path, header),
        "details": _details(header),
    }


async def tags(request: Request) -> Response:
    state = state_of(request)
    header = state.pool.runtime.header
    return JSONResponse({"models": [_named(state, header) | {"modified_at": _began(state)}]})


async def ps(request: Request) -> Response:
    state = state_of(request)
    plan = state.pool.runtime.plan
    running = {"expires_at": NEVER, "size_vram": 0, "context_length": plan.n_ctx_train, "size": plan.peak_bytes}
    return JSONResponse({"models": [_named(state, state.pool.runtime.header) | running]})


async def show(request: Request) -> Response:
    state = state_of(request)
    header, plan = state.pool.runtime.header, state.pool.runtime.plan
    has_tools = state.pool.replier.chats and state.pool.runtime.options.grammars is not False
    about = {key: value for key, value in header.metadata.items() if key not in (TEMPLATE_KEY, TOOLS_TEMPLATE_KEY)}
    return JSONResponse(
        {
            "license": str(about.get("general.license", "")),
            "modelfile": f"FROM {state.model_name}",
            "parameters": f"budget {plan.budget_cells}",
            "template": header.chat_template or "",
            "details": _details(header),
            "model_info": about,
            "capabilities": ["completion", *["tools"] * has_tools, *["insert"] * state.pool.replier.fills_gaps],
            "modified_at": _began(state),
        }
    )


async def version(request: Request) -> Response:
    return JSONResponse({"version": API_VERSION, "edgekv": edgekv.__version__})


routes = [
    Route("/api/tags", tags),
    Route("/api/ps", ps),
    Route("/api/show", show, methods=["POST"]),
    Route("/api/version", version),
]
