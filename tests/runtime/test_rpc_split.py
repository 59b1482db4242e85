"""Models over two RPC servers of this machine: their answers, their ceilings, and servers that go.

The model is in a worker process, which ends with a server. All workers must have ended at last.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import struct
import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from children import LIMIT_S
from command import run_here, run_program, words
from diagonals import by_night
from lent_device import lent_device, reserved_port

import edgekv
from edgekv.devices import server as asked
from edgekv.testing.models.families import make_family

SETTING = {
    **{"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "kv_type": "f16", "focus": False},
    "archive": "off",
}
BOUND = 2.9e-2  # share of the deviation of logits: the largest error of single tokens over f16 on a device
N_LAYER = 6
N_HEAD_KV = 2
GREEDY = edgekv.Sampling(temperature=0)

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture(scope="module")
def servers():
    """Addresses of two servers."""
    with lent_device() as (first, _), lent_device() as (second, _):
        yield [first, second]


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_layer=N_LAYER, n_head_kv=N_HEAD_KV, head_dim=64, n_ctx_train=4096)


def said(session, text, **options):
    """Token, its log probability and those of the most probable ones, for each token that is said."""
    settings = {"max_tokens": 12, "allow_loops": True, "logprobs": 8, "sampling": GREEDY} | options
    tokens = [token for piece in session.chat(text, **settings) for token in piece.tokens]
    assert len(tokens) > 2
    return tokens


def assert_equal(found, expected):
    """Log probabilities within the bound of logits, which a sum over all moves too, until a near tie parts them."""
    bound = 2 * BOUND * np.std([other.logprob for token in expected for other in token.top])
    for here, there in zip(found, expected, strict=False):
        known = {other.id: other.logprob for other in here.top}
        pairs = [(known[other.id], other.logprob) for other in there.top if other.id in known]
        assert len(pairs) > 4
        np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=0, atol=bound)
        if here.id != there.id:
            first, second = (other.logprob for other in there.top[:2])
            assert first - second < bound
            break


def kept(session):
    return [session.kept_positions(layer, head) for layer in range(N_LAYER) for head in range(N_HEAD_KV)]


# ---- what a split model says ----


@pytest.mark.parametrize(
    "where",
    [
        {},
        # three layers and the output matrix
        pytest.param({"gpu_layers": 4, "reposition": "always"}, marks=pytest.mark.nightly),
        pytest.param({"gpu_layers": 1}, marks=pytest.mark.nightly),
        pytest.param({"tensor_split": [1, 0]}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_answers_are_those_of_one_process(model, servers, where):
    """Scores of `sink` are positions, so the same cells are kept, and only rounding differs."""
    here = {name: value for name, value in where.items() if name == "reposition"}
    with edgekv.Runtime(model, policy="sink", **SETTING | here) as rt, rt.session() as session:
        session.read(words(60))
        expected = said(session, "Go on.")
    with edgekv.Runtime(model, policy="sink", rpc=servers, isolated=True, **SETTING | where) as rt:
        assert sum(share.layers for share in rt.plan.devices) == min(N_LAYER, where.get("gpu_layers", 99) - 1)
        with rt.session() as session:
            session.read(words(60))
            assert session.stats.evictions > 5
            assert session.stats.staged_layers == 0
            assert_equal(said(session, "Go on."), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "keydiff", "focus": True, "gpu_layers": 5},
        pytest.param({"policy": "snapkv", "tensor_split": "1,2"}, marks=pytest.mark.nightly),
        pytest.param({"policy": "h2o", "kv_type": "q8_0"}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_cells_are_those_of_one_process(model, servers, text_file, options):
    """But for near ties, which rounding decides. Sets that have nothing to do with each other share a quarter."""
    here = {name: value for name, value in options.items() if name not in ("gpu_layers", "tensor_split")}
    sets = []
    for setting in (here, options | {"rpc": servers, "isolated": True}):
        with edgekv.Runtime(model, **SETTING | setting) as rt, rt.session() as session:
            list(session.ask("Which word?", files=[text_file(words(60))], max_tokens=1))
            sets.append(kept(session))
    shared = [len(np.intersect1d(here, there)) / len(here) for here, there in zip(*sets, strict=True)]
    assert min(shared) >= 0.7
    assert np.mean(shared) >= 0.9


@pytest.mark.nightly
def test_evicted_tokens_come_back_from_an_archive(model, servers, tmp_path):
    """Rows of both servers. There every head gets equally many cells, and here those whose tokens are best get more.

    Where the session lies it says the same again, to the bit.
    """
    sets = []
    for where in ({}, {"rpc": servers, "isolated": True}):
        setting = SETTING | {"policy": "sink", "reposition": "never", "archive": "64MiB"} | where
        with edgekv.Runtime(model, **setting) as rt, rt.session(history=True) as session:
            session.read(words(150))
            n_read = session.n_past
            expected = said(session, "Go on.")
            assert session.stats.recalled_cells > 0
            assert session.stats.archive_failure == ""
            sets.append(kept(session))
            session.save(tmp_path / "one.session")
            following = said(session, "What else?")
            with rt.load_session(tmp_path / "one.session") as loaded:
                assert said(loaded, "What else?") == following
            session.rewind(n_read)  # its rows come back, and nothing is decoded
            assert said(session, "Go on.") == expected
    shared = [len(np.intersect1d(here, there)) / len(here) for here, there in zip(*sets, strict=True)]
    assert np.mean(shared) >= 0.7
    lengths = [set(map(len, here)) for here in sets]
    assert len(lengths[0]) > 1
    assert len(lengths[1]) == 1


@pytest.mark.nightly
def test_a_saved_session_whose_heads_differ_goes_on_where_all_have_equally_many(model, servers, tmp_path):
    setting = SETTING | {"policy": "sink", "reposition": "never", "archive": "64MiB"}
    with edgekv.Runtime(model, **setting) as rt, rt.session() as session:
        session.read(words(150))
        said(session, "Go on.")
        assert len(set(map(len, kept(session)))) > 1
        session.save(tmp_path / "one.session")
    there = setting | {"rpc": servers, "isolated": True}
    with edgekv.Runtime(model, **there) as rt, rt.load_session(tmp_path / "one.session") as loaded:
        assert {len(of) for of in kept(loaded)} == {SETTING["budget"]}
        assert said(loaded, "What else?")
        assert loaded.stats.recalled_cells > 0


@pytest.mark.parametrize("family", by_night(["gemma3", "lfm2", "deepseek2"], ["gemma3"]))
def test_other_kinds_of_memory_lie_there_too(tmp_path, servers, family):
    """Windows, recurrent states and latents."""
    path = make_family(tmp_path / "model.gguf", family)
    found = []
    for where in ({}, {"rpc": servers, "isolated": True}):
        setting = SETTING | {"policy": "sink", "reposition": "never"} | where
        with edgekv.Runtime(path, **setting) as rt, rt.session() as session:
            session.read(words(20))
            found.append(said(session, "Go on."))
    assert_equal(*found)


@pytest.mark.nightly
def test_sessions_take_turns_and_are_saved(model, servers, tmp_path):
    with edgekv.Runtime(model, rpc=servers, isolated=True, **SETTING) as rt:
        with rt.session(history=True) as one, rt.session() as two:
            one.read(words(60))
            two.read(words(20))
            snapshot = one.snapshot()
            one.save(tmp_path / "one.session")
            expected = said(one, "Go on.")
        with rt.session(start=snapshot, history=True) as again:
            assert_equal(said(again, "Go on."), expected)
        with rt.load_session(tmp_path / "one.session") as loaded:
            assert_equal(said(loaded, "Go on."), expected)


# ---- ceilings ----


def test_each_device_has_a_ceiling(model, servers):
    split = {"rpc": servers, "isolated": True, "tensor_split": "1,1"}
    plan = edgekv.plan(model, **SETTING | split)
    first, second = plan.devices
    assert [share.address for share in plan.devices] == servers
    assert (first.layers, first.output, second.layers, second.output) == (4, False, 2, True)
    assert plan.kv_bytes < first.kv + second.kv < 2 * plan.kv_bytes  # devices read some rows beyond the last one
    assert plan.parts.kv == 0
    assert plan.device_bytes == first.total + second.total

    exact = {share.address: share.total for share in plan.devices}
    again = edgekv.plan(model, device_memory=exact, **SETTING | split)
    assert again.devices == tuple(
        dataclasses.replace(share, ceiling_bytes=share.total, free_bytes=other.free_bytes)
        for share, other in zip(plan.devices, again.devices, strict=True)
    )
    for share in plan.devices:
        with pytest.raises(edgekv.CeilingError) as error:
            edgekv.Runtime(model, device_memory=exact | {share.address: share.total - 1}, **SETTING | split)
        assert (error.value.required_bytes, error.value.ceiling_bytes) == (share.total, share.total - 1)
        for part in (f"of {share.name} ({share.address}) does not hold {share.layers} layers", "lower the budget to"):
            assert part in str(error.value)


@pytest.mark.nightly  # tests/unit/test_assign_layers.py divides them by day
def test_layers_are_divided_as_ceilings_allow(model, servers):
    even = edgekv.plan(model, rpc=servers, isolated=True, tensor_split="1,1", **SETTING)
    first, second = even.devices
    layer = first.weights // first.layers + first.kv // first.layers
    tight = {
        "RPC0": first.total - first.layers * layer + layer + layer // 2,
        "RPC1": second.total + 3 * layer + layer // 2,
    }
    plan = edgekv.plan(model, rpc=servers, isolated=True, device_memory=tight, **SETTING)
    assert [share.layers for share in plan.devices] == [1, N_LAYER - 1]
    # If the devices have no room for all, the first layers stay here.
    tight["RPC1"] = second.total - layer // 2
    plan = edgekv.plan(model, rpc=servers, isolated=True, device_memory=tight, **SETTING)
    assert [share.layers for share in plan.devices] == [1, 1]
    assert plan.gpu_layers == 3
    assert plan.parts.kv > 0
    with pytest.raises(edgekv.CeilingError, match=r"put fewer than gpu_layers=7 layers on devices"):
        edgekv.plan(model, rpc=servers, isolated=True, device_memory=tight, gpu_layers=99, **SETTING)
    with pytest.raises(edgekv.CeilingError, match=r"of RPC[01] \(127.*\) does not hold .* are needed"):
        edgekv.plan(model, rpc=servers, isolated=True, device_memory="RPC0=1MiB,RPC1=1MiB", **SETTING)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device_memory": "1GiB"}, "is the ceiling of one device, and there are RPC0"),
        ({"device_memory": "RPC7=1GiB"}, "device_memory names RPC7, and the devices are RPC0"),
        ({"tensor_split": "1,2,3"}, "tensor_split has 3 parts, and the devices are RPC0"),
    ],
    ids=str,
)
def test_devices_are_named_rightly(model, servers, options, message):
    with pytest.raises(edgekv.ConfigError, match=message):
        edgekv.plan(model, rpc=servers, isolated=True, **SETTING | options)


def test_the_ceiling_of_layers_elsewhere_stays(model, servers):
    with edgekv.Runtime(model, rpc=servers, isolated=True, **SETTING) as rt, rt.session() as session:
        session.read(words(60))
        before = rt.plan, rt.options, session.n_cells
        for memory in ("2GiB", "8GiB", "least"):
            with pytest.raises(edgekv.ConfigError, match="layers on a device or another machine stays as it is"):
                rt.memory = memory
            assert (rt.plan, rt.options, session.n_cells) == before
        assert said(session, "Go on.")
    with pytest.raises(edgekv.ConfigError, match=r"yields=0\.5 moves the ceiling"):
        edgekv.plan(model, rpc=servers, isolated=True, yields="50%", **SETTING)


# ---- servers that go ----


def test_a_server_that_is_not_there_is_told_before_loading(model, servers):
    with reserved_port() as port:
        absent = f"127.0.0.1:{port}"
        for use in (edgekv.plan, edgekv.Runtime):
            with pytest.raises(edgekv.DeviceError, match=f"{absent} does not answer as an RPC server"):
                use(model, rpc=[servers[0], absent], isolated=True, **SETTING)


def kill(server):
    os.kill(server.pid, signal.SIGKILL)
    server.wait(LIMIT_S)


@pytest.mark.nightly
def test_a_server_that_goes_while_a_text_is_read(model, servers, capfd):
    with lent_device() as (address, server):
        rpc = [servers[0], address]
        with edgekv.Runtime(model, rpc=rpc, isolated=True, **SETTING) as rt, rt.session() as session:
            gone = f"{address} does not answer as an RPC server"
            with pytest.raises(edgekv.WorkerError, match=gone) as error:
                session.read(words(2000), progress=lambda _: kill(server) if server.poll() is None else None)
            assert "close this runtime and open another" in str(error.value)
            for use in (rt.session, lambda: session.read(words(10))):
                with pytest.raises(edgekv.WorkerError, match=gone):
                    use()
    assert "Remote RPC server crashed" in capfd.readouterr().err
    with edgekv.Runtime(model, rpc=servers[0], isolated=True, **SETTING) as rt, rt.session() as session:
        said(session, "Hello")  # the other server serves the next one


def test_a_server_that_goes_while_a_reply_is_said(model, capfd):
    with (
        lent_device() as (address, server),
        edgekv.Runtime(model, rpc=address, isolated=True, **SETTING) as rt,
        rt.session() as session,
    ):
        pieces = session.chat("Hello", max_tokens=500, allow_loops=True)
        next(pieces)
        kill(server)
        with pytest.raises(edgekv.WorkerError, match=f"{address} does not answer as an RPC server"):
            list(pieces)


@contextmanager
def silent_server():
    """HOST:PORT of what says what it lends, and nothing from then on."""
    answers = [bytes([7, 0, 0]) + bytes(25), struct.pack("<I", 1), struct.pack("<QQ", 1 << 30, 1 << 30)]
    connections = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with suppress(OSError):
                connections.append(listening.accept())
                for answer in answers:
                    connections[0][0].recv(64)
                    connections[0][0].sendall(struct.pack("<Q", len(answer)) + answer)
                while True:
                    connections.append(listening.accept())

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)
            for connection, _ in connections:
                connection.close()


def test_a_server_that_falls_silent_is_told(model, monkeypatch):
    monkeypatch.setattr(asked, "TIMEOUT_S", 1)
    with (
        silent_server() as address,
        pytest.raises(edgekv.WorkerError, match=f"{address} does not answer within 1 s"),
    ):
        edgekv.Runtime(model, rpc=address, rpc_timeout=1, isolated=True, **SETTING)


# ---- the command line ----


@pytest.mark.nightly
def test_commands_put_layers_on_servers(model, servers):
    options = ["-m", model, "--rpc", ",".join(servers), "--memory", "4GiB", "--budget", "64", "--threads", "1"]
    plan = json.loads(run_program("plan", *options, "--json").stdout)  # it keeps the servers it was given
    assert [share["address"] for share in plan["devices"]] == servers
    assert sum(share["layers"] for share in plan["devices"]) == N_LAYER
    for looking in (["inspect", *options, "Hello"], ["bench", "--rpc", servers[0]]):
        told = run_here(*looking)
        assert told.returncode == 2
        assert "keeps cells out of this process" in told.stderr
