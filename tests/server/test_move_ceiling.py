"""PUT /memory: who may move the ceiling of a server, and what it does to conversations."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from dataclasses import asdict

import pytest
from asgi import fetched
from diagonals import HERE_BY_DAY

from edgekv.errors import SessionError
from edgekv.server.ceiling_signals import CeilingSignals

KEY = {"Authorization": "Bearer key"}


def moved(application, memory, headers=KEY):
    body = {"memory": memory}
    return asyncio.run(fetched(application, "/memory", body, headers=headers, method="PUT"))


def told(application, *texts):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0}
    answer = asyncio.run(fetched(application, "/v1/chat/completions", body, headers=KEY))
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def guarded(open_server):
    with open_server(api_keys=("key",), options={"budget": 1500}) as application:
        yield application


def test_a_conversation_goes_on_under_another_ceiling(guarded):
    runtime = guarded.state.pool.runtime
    opened = runtime.plan
    text = "The old house by the river was red. " * 40
    told(guarded, text)
    low = opened.peak_bytes - 1000 * opened.cell_bytes
    answer = moved(guarded, low)
    assert answer.status_code == 200
    planned = answer.json()
    assert planned == {
        "ceiling_bytes": low,
        "budget_cells": runtime.plan.budget_cells,
        "planned_bytes": runtime.plan.peak_bytes,
    }
    assert planned["planned_bytes"] <= low
    assert planned["budget_cells"] < 600
    assert told(guarded, text, "It was.", "And then?")["usage"]["prompt_tokens"] > planned["budget_cells"]
    assert all(session.n_cells <= 600 + runtime.plan.block for session in guarded.state.pool.sessions)
    assert moved(guarded, "4GiB").json()["budget_cells"] == 1500


def test_it_tells_who_holds_how_much(guarded):
    plan = guarded.state.pool.runtime.plan
    told(guarded, "Hello")
    answer = asyncio.run(fetched(guarded, "/memory", headers=KEY)).json()
    assert (answer["ceiling_bytes"], answer["budget_cells"]) == (plan.ceiling_bytes, plan.budget_cells)
    assert {it["owner"]: it["planned_bytes"] for it in answer["ledger"]} == asdict(plan.parts)
    metrics = asyncio.run(fetched(guarded, "/metrics", headers=KEY)).text
    (held,) = (line.split()[1] for line in metrics.splitlines() if line.startswith('edgekv_held_bytes{owner="kv"}'))
    assert float(held) == next(it["held_bytes"] for it in answer["ledger"] if it["owner"] == "kv") > 0


def test_metrics_go_on_while_no_model_is_loaded(open_server):
    with open_server(api_keys=("key",), options={"budget": 1500}) as application:
        application.state.pool.runtime.close()
        assert asyncio.run(fetched(application, "/metrics", headers=KEY)).status_code == 200
        assert asyncio.run(fetched(application, "/memory", headers=KEY)).json()["ledger"] == []


@pytest.mark.parametrize("memory", ["much", "1MiB", 0, -5, None, True, [1]])
def test_a_ceiling_that_cannot_be_is_refused(guarded, memory):
    before = guarded.state.pool.runtime.plan
    answer = moved(guarded, memory)
    assert answer.status_code == 400
    assert guarded.state.pool.runtime.plan == before


def test_it_takes_a_key(guarded, open_server):
    assert moved(guarded, "4GiB", headers={}).status_code == 401
    with open_server() as application:
        answer = moved(application, "4GiB", headers={})
        assert answer.status_code == 403
        assert "edgekv serve --api-key" in answer.json()["error"]["message"]


@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_a_runtime_that_is_opened_again_has_the_ceiling(open_server, isolated):
    """Two workers measure themselves, and differ by some pages, each of which is four cells here."""
    with open_server(api_keys=("key",), options={"isolated": isolated, "budget": 1500}) as application:
        pool = application.state.pool
        opened = pool.runtime.plan
        assert moved(application, opened.peak_bytes - 750 * opened.cell_bytes).status_code == 200
        plan = pool.runtime.plan
        pool.runtime.close()
        told(application, "Hello")
        assert pool.runtime.plan.ceiling_bytes == plan.ceiling_bytes
        assert pool.runtime.plan.budget_cells < 1500
        assert isolated or pool.runtime.plan == plan


def test_the_least_ceiling_and_back(open_server):
    """In a process of its own: this one may have grown since the plan, so that less can be given back."""
    with open_server(api_keys=("key",), options={"isolated": True, "budget": 1500}) as application:
        pool = application.state.pool
        opened = pool.runtime.plan
        least = moved(application, "least").json()
        assert pool.runtime.options.least_budget() <= least["budget_cells"] < 1500
        assert least["planned_bytes"] <= least["ceiling_bytes"] == pool.runtime.memory < opened.peak_bytes
        assert moved(application, "least").json() == least
        assert told(application, "Hello")
        assert pool.restore_memory() == opened


posix = pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")


@posix
def test_signals_move_the_ceiling_in_order(guarded, caplog):
    pool, before = guarded.state.pool, signal.getsignal(signal.SIGUSR1)
    moved(guarded, "4GiB")
    with caplog.at_level(logging.INFO, "edgekv.server"):
        for numbers in ([signal.SIGUSR1], [signal.SIGUSR1, signal.SIGUSR1, signal.SIGUSR2]):
            with CeilingSignals(pool):  # it ends when all are followed
                for number in numbers:
                    signal.raise_signal(number)
            assert (pool.runtime.memory == 4 << 30) == (numbers[-1] == signal.SIGUSR2)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["SIGUSR1"] * 3 + ["SIGUSR2"]
    assert "SIGUSR2: the ceiling is 4096.0 MiB, 1500 cells" in caplog.text
    assert signal.getsignal(signal.SIGUSR1) is before


@posix
def test_a_signal_that_moves_nothing_is_said(guarded, caplog, monkeypatch):
    def refuse():
        raise SessionError("the runtime is closed")

    monkeypatch.setattr(guarded.state.pool, "restore_memory", refuse)
    with CeilingSignals(guarded.state.pool):
        signal.raise_signal(signal.SIGUSR2)
    assert "SIGUSR2: the ceiling stays: the runtime is closed" in caplog.text


def test_windows_has_no_such_signals(guarded, monkeypatch):
    monkeypatch.setattr("edgekv.server.ceiling_signals.sys.platform", "win32")
    set_handlers = []
    monkeypatch.setattr(signal, "signal", lambda *handler: set_handlers.append(handler))
    with CeilingSignals(guarded.state.pool):
        assert not set_handlers
