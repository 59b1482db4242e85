"""Weights that are read whenever their turn comes: beside what a session meets, and from files that changed."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

import edgekv
from edgekv.errors import ConfigError, InvalidModelError
from edgekv.models import read_header
from edgekv.planning.streaming_cost import StreamingCost, file_speed, streaming_cost
from edgekv.testing.models.families import make_family

OPTIONS = {"memory": "1GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16, "repack": False}
TEXT = "the old house by the river stood empty since the flood of that year " * 8
MATCHES = [
    {"policy": "h2o"},
    {"policy": "snapkv+critical+ada"},
    {"policy": "keydiff+critical+ada", "focus": False},
    {"policy": "tova+caote", "kv_type": "q8_0"},
    {"reposition": "always"},
    {"prompt_lookup": "on"},
    {"threads": 3, "block": 96, "ubatch": 24},
    pytest.param({"isolated": True}, marks=pytest.mark.nightly),
]


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_layer=5, n_embd=128, n_head=4, n_head_kv=2, head_dim=32, quantization="Q4_0")


def replies(path, **options):
    """Return the replies of two sessions that take turns, so that one of them is swapped out."""
    settings = OPTIONS | {"swap_memory": "64MiB"} | options
    with edgekv.Runtime(path, **settings) as rt, rt.session() as one, rt.session() as other:
        one.read(TEXT)
        other.read(TEXT[20:300])
        return ["".join(session.chat("Who?", max_tokens=6)) for session in (one, other, one)]


@pytest.mark.parametrize("options", MATCHES, ids=str)
def test_replies_are_those_of_weights_in_memory(model, options):
    assert replies(model, resident=0.2, **options) == replies(model, **options)


def test_a_session_goes_on_where_other_weights_stay(model, tmp_path):
    with edgekv.Runtime(model, **OPTIONS) as rt, rt.session() as session:
        session.read(TEXT)
        session.save(tmp_path / "saved")
        expected = "".join(session.chat("Who?", max_tokens=6))
    with edgekv.Runtime(model, resident="40%", **OPTIONS) as rt, rt.load_session(tmp_path / "saved") as session:
        assert "".join(session.chat("Who?", max_tokens=6)) == expected


def test_a_cut_file_ends_a_reply_and_loses_nothing(own_model, model):
    with edgekv.Runtime(own_model, resident=0, **OPTIONS) as rt, rt.session() as session:
        session.read(TEXT)
        seen = session.n_past
        os.truncate(own_model, 1000)
        with pytest.raises(InvalidModelError, match=r"streamed weights cannot be read .* changed after it was loaded"):
            list(session.chat("Who?", max_tokens=6))
        assert session.n_past == seen
        shutil.copyfile(model, own_model)
        os.utime(own_model, (0, 0))
        found = "".join(session.chat("Who?", max_tokens=6))
    with edgekv.Runtime(model, **OPTIONS) as rt, rt.session() as session:
        session.read(TEXT)
        assert "".join(session.chat("Who?", max_tokens=6)) == found


needs_pages = pytest.mark.skipif(sys.platform != "linux", reason="rows are read to pages that are given back")


@needs_pages
def test_a_table_that_is_only_looked_up_stays_in_the_file(model):
    """However many layers are streamed, and whether other weights are repacked."""
    (table,) = (tensor for tensor in read_header(model).tensors if tensor.name == "token_embd.weight")
    options = OPTIONS | {"repack": None, "ubatch": 1}
    mapped = edgekv.plan(model, mmap=True, **options)
    assert (mapped.mmap, mapped.parts.slots) == (True, 0)
    for given in ({}, {"repack": False}, {"mmap": False}, {"resident": 1}):
        plan = edgekv.plan(model, **options | given)
        held = plan.parts.weights + plan.parts.repacking
        assert 0 <= mapped.parts.weights - held - table.n_bytes < 64  # padding
        assert 0 < plan.parts.slots < table.n_bytes
        assert (plan.mmap, plan.n_streamed) == (False, 0)


def test_a_table_that_is_the_output_matrix_stays_in_memory(tiny_model):
    tied = tiny_model(architecture="gemma", n_ctx_train=1024)
    plan = edgekv.plan(tied, **OPTIONS)
    assert (plan.mmap, plan.parts.slots) == (True, 0)
    assert plan.parts.weights == edgekv.plan(tied, mmap=True, **OPTIONS).parts.weights


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"isolated": True}, marks=pytest.mark.nightly), {"prompt_lookup": "on"}, {"block": 7}],
    ids=str,
)
def test_replies_are_those_of_a_table_in_memory(model, options):
    assert replies(model, **options) == replies(model, mmap=True, **options)


@needs_pages
def test_a_cut_table_ends_a_reply_and_loses_nothing(own_model):
    with edgekv.Runtime(own_model, **OPTIONS) as rt, rt.session() as session:
        session.read(TEXT)
        seen = session.n_past
        os.truncate(own_model, 1000)
        with pytest.raises(InvalidModelError, match=r"cannot be read .* changed after it was loaded.*mmap=True"):
            list(session.chat("Who?", max_tokens=6))
        assert session.n_past == seen


def test_the_plan_counts_the_rows_of_the_tokens_that_are_fed_at_once(model):
    """The file's table of tokens has a row for each of them, which is looked up there."""
    (table,) = (tensor for tensor in read_header(model).tensors if tensor.name == "token_embd.weight")
    few, many = (edgekv.plan(model, resident=0, ubatch=n, **OPTIONS).parts.slots for n in (1, 32))
    assert many - few >= 31 * table.n_bytes // table.shape[1]


def test_a_named_share_of_the_layers_stays(model):
    plans = [edgekv.plan(model, resident=share, **OPTIONS) for share in (1, "60%", 0.2, 0)]
    assert [(plan.n_layers, plan.n_streamed) for plan in plans] == [(5, 0), (5, 2), (5, 4), (5, 5)]
    assert plans[0].streamed_bytes == 0
    assert plans[0].parts.slots < plans[1].parts.slots
    assert not any(plan.mmap for plan in plans[1:])
    assert plans[3].streamed_bytes > plans[2].streamed_bytes > plans[1].streamed_bytes > 0
    assert plans[3].parts.slots == plans[2].parts.slots


@pytest.mark.parametrize("share", [-0.1, 1.1, "some", "101%", True, float("nan")])
def test_a_share_that_cannot_be(model, share):
    with pytest.raises(ConfigError, match=r"resident=.* is not possible; give a share from 0 to 1, such as 0.5 or 50%"):
        edgekv.plan(model, resident=share)


@pytest.mark.parametrize("other", [{"mmap": True}, {"gpu_layers": 1}, {"rpc": "127.0.0.1:1", "isolated": True}])
def test_what_holds_weights_in_another_way_is_refused_by_name(model, other):
    with pytest.raises(
        ConfigError, match=rf"which {next(iter(other))}=.* does not go with; leave {next(iter(other))} out"
    ):
        edgekv.plan(model, resident=0.5, **other)


def test_experts_are_read_when_they_are_chosen(tmp_path):
    """One token chooses two of four, and those that were chosen last may stay.

    A thread reads ahead. So tokens are counted together, with what may lie in the slots when the count begins or ends.
    """
    path = make_family(tmp_path / "model.gguf", "glm4moe")
    with edgekv.Runtime(path, resident=0, **OPTIONS) as rt:
        plan, streaming = rt.plan, rt.model.streaming
        loop = rt.block_loop
        loop.read([5, 6, 7], lambda n: True)
        before = streaming().read_bytes
        n_tokens = 12
        most_bytes = n_tokens * plan.token_bytes + plan.parts.slots
        assert most_bytes < n_tokens * plan.streamed_bytes
        for token in range(8, 8 + n_tokens):
            loop.step(token)
        assert streaming().read_bytes - before <= most_bytes


def test_what_streaming_costs(model, tmp_path):
    assert streaming_cost(edgekv.plan(model, **OPTIONS), 128) is None
    plan = edgekv.plan(model, resident=0, **OPTIONS)
    cost = streaming_cost(plan, 128)
    assert (cost.n_streamed, cost.batch_bytes, cost.tokens_per_batch) == (5, plan.streamed_bytes, 32)
    assert cost.token_bytes == cost.batch_bytes  # there are no experts
    told = StreamingCost(28, 14, 100 << 20, 60 << 20, 128, 300 << 20)
    assert (told.most_decode_tok_per_s, told.most_prefill_tok_per_s) == (5, 384)
    assert str(told) == (
        "weights of 14 of 28 layers are read from the file: 100.0 MiB for 128 tokens of a prompt, 60.0 MiB for a token "
        "of a reply; the file gives 300.0 MiB a second, so at most 384 and 5.0 tokens a second"
    )
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    ticks = iter(range(100))
    assert file_speed(path, lambda: next(ticks)) == 256 << 10  # a piece a tick: the second one comes too late
