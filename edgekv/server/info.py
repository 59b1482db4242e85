"""Endpoints about the server: its model, its health, its limits, its counters. They tell no path of the machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import anyio
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import edgekv
from edgekv.api.api_errors import ApiError
from edgekv.api.llama_completions import sampling_of
from edgekv.api.openai_common import GenerationParams
from edgekv.generation.request import MAX_TOKENS
from edgekv.memory import process

from .state import ServerState, state_of


def _model(state: ServerState) -> dict[str, Any]:
    """Return the model, with its trained context under the names that clients look for, and what it can."""
    runtime = state.pool.runtime
    n_ctx = runtime.plan.n_ctx_train
    chats, has_grammars = state.pool.replier.chats, runtime.options.grammars is not False
    can = {"completion": True, "chat": chats, "tools": chats and has_grammars, "json_schema": has_grammars}
    can["infill"] = state.pool.replier.fills_gaps
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.started,
        "owned_by": "edgekv",
        "context_length": n_ctx,
        "max_model_len": n_ctx,
        "meta": {"n_ctx_train": n_ctx},
        "capabilities": [name for name, possible in can.items() if possible],
    }


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_model(state_of(request))]})


async def model(request: Request) -> Response:
    state = state_of(request)
    if request.path_params["name"] != state.model_name:
        raise ApiError(404, "model_not_found", f"this server has one model, {state.model_name!r}", param="model")
    return JSONResponse(_model(state))


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _as_llama_cpp(state: ServerState) -> dict[str, Any]:
    """Return what programs for llama.cpp's server look for. Its context is the trained one, though cells are fewer."""
    runtime, sampling = state.pool.runtime, GenerationParams().sampling()
    plan = runtime.plan
    return {
        "model_alias": state.model_name,
        "model_path": plan.model.name,
        "total_slots": runtime.options.parallel,
        "default_generation_settings": {"n_ctx": plan.n_ctx_train, "params": sampling_of(sampling, MAX_TOKENS)},
        "chat_template": runtime.header.chat_template or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"edgekv {edgekv.__version__}",
    }


async def props(request: Request) -> Response:
    state = state_of(request)
    runtime, settings = state.pool.runtime, state.settings
    plan, options = runtime.plan, runtime.options
    return JSONResponse(
        {
            "model": state.model_name,
            **_as_llama_cpp(state),
            "ceiling_bytes": plan.ceiling_bytes,
            "planned_peak_bytes": plan.peak_bytes,
            "budget": plan.budget_cells,
            "block": plan.block,
            "kv_type": plan.kv_type,
            "cells": plan.n_cells,
            "trained_context": plan.n_ctx_train,
            "session_bytes": plan.session_bytes,
            "parts": asdict(plan.parts),
            "policy": options.parsed_policy.spec,
            "focus_policy": options.parsed_focus.spec if options.focus else None,
            "focus": options.focus and settings.focus,
            "archive_bytes": plan.archive_bytes,
            "archive_token_bytes": plan.archive_token_bytes,
            "isolated": options.isolated,
            "max_body": settings.max_body,
            "parallel": options.parallel,
            "queue": settings.queue,
            "sessions": settings.sessions,
            "conversations": settings.conversations_dir is not None,
        }
    )


async def tokenizer_info(request: Request) -> Response:
    """Tell programs that look for vLLM's address that /tokenize and /detokenize are here."""
    state = state_of(request)
    return JSONResponse({"model": state.model_name, "model_max_length": state.pool.runtime.plan.n_ctx_train})


async def version(request: Request) -> Response:
    return JSONResponse({"version": edgekv.__version__})


async def load(request: Request) -> Response:
    """Tell how many requests wait or are answered, as vLLM's server does."""
    queue = state_of(request).queue
    return JSONResponse({"server_load": queue.n_waiting + queue.n_answered})


async def metrics(request: Request) -> Response:
    state = state_of(request)
    plan, kept = state.pool.runtime.plan, state.pool.storage.folder
    now = {
        "ceiling_bytes": plan.ceiling_bytes,
        "resident_bytes": process.resident_bytes(),
        "budget_cells": plan.budget_cells,
        "queue": state.queue.n_waiting,
        "slots": state.pool.runtime.options.parallel,
        "busy": state.queue.n_answered,
        "sessions": len(state.pool.sessions),
        "worker_restarts": state.pool.n_restarts,
        "state_bytes": 0 if kept is None else kept.n_bytes,
        "state_written_bytes": 0 if kept is None else kept.written_bytes,
    }
    ledger = await anyio.to_thread.run_sync(state.pool.ledger)
    return Response(state.metrics.text(now, ledger), media_type=CONTENT_TYPE_PLAIN_0_0_4)


routes = [
    *(Route(f"{base}/models", models) for base in ("/v1", "")),
    *(Route(f"{base}/models/{{name:path}}", model) for base in ("/v1", "")),
    *(Route(path, health) for path in ("/health", "/ping")),
    Route("/version", version),
    Route("/load", load),
    Route("/props", props),
    Route("/tokenizer_info", tokenizer_info),
    Route("/metrics", metrics),
]
