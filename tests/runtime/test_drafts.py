"""Drafts: what is said with them is what is said without, and those that are dropped leave nothing behind."""

from __future__ import annotations

import numpy as np
import pytest
from command import words
from diagonals import by_night, diagonal

import edgekv
from edgekv.binding.model import Context
from edgekv.cells import speculation
from edgekv.cells.speculation import NgramProposer, SpeculationGate
from edgekv.options import DRAFT_TOKENS
from edgekv.policies import register, unregister
from edgekv.testing.models.families import make_family

SETTINGS = {
    "memory": "4GiB",
    "budget": 64,
    "block": 128,  # long enough for the longest drafts
    "evict_every": 32,
    "recent": 16,
    "threads": 1,
    "probe_tokens": 16,
}
POLICIES = [
    *("keydiff", "snapkv(window=16)", "h2o", "ahakv", "tova", "l2norm", "sink", "random"),
    *("keydiff+critical", "snapkv+caote", "keydiff+ada", "h2o+ada", "snapkv+pyramid"),
]
SHAPE = {"n_layer": 2, "n_ctx_train": 2048, "head_dim": 64, "quantization": "Q8_0"}
GREEDY = edgekv.Sampling()
DRAWN = edgekv.Sampling(temperature=0.3, seed=11)
DRAWN_BY = diagonal(POLICIES, [GREEDY, DRAWN])
# what is scored by keys, by queries, by sums, by values, and with budgets of heads and layers
OF_EACH_ARRAY = ("keydiff", "snapkv(window=16)", "ahakv", "snapkv+caote", "h2o+ada", "snapkv+pyramid")


@pytest.fixture
def model(tiny_model):
    """A model whose logits are the same to the bit however many tokens a decode has."""
    return tiny_model(**SHAPE)


@pytest.fixture
def drafting(monkeypatch):
    """A list of the tokens that a reply without drafts feeds. Once it has some, drafts begin with those that come next,
    and one of twelve is wrong; all are decoded, whether that pays or not."""
    fed, rng = [], np.random.default_rng(0)

    def propose(history, token, most, log):
        at = len(history.to_bytes()) // 4
        draft = fed[at + 1 : at + 1 + most]
        return [9 if rng.random() < 1 / 12 else token for token in draft]

    monkeypatch.setattr(SpeculationGate, "allows_draft", lambda gate, draft: True)
    monkeypatch.setattr(NgramProposer, "propose", propose)
    return fed


@pytest.fixture(autouse=True)
def endless(talkative):
    """Replies are as long as they may be."""


def replies(path, prompt_lookup, sampling=GREEDY, fed=None, **options):
    """Return the replies of three turns, the cells that every head keeps, and counts of drafted and accepted tokens."""
    said, drafted, accepted = [], 0, 0
    with edgekv.Runtime(path, **SETTINGS | {"prompt_lookup": prompt_lookup} | options) as rt, rt.session() as session:
        if fed is not None:
            rt.block_loop.watch = fed.extend
        for text in (words(60), words(30), words(20)):
            said.append("".join(session.chat(text, max_tokens=60, allow_loops=True, sampling=sampling)))
            drafted += session.stats.drafted_tokens
            accepted += session.stats.accepted_tokens
        kept = [session.kept_positions(*head).tolist() for head in ((0, 0), (0, 1), (1, 0), (1, 1))]
        return (said, kept, session.budgets(), session.n_past), drafted, accepted


def check_equal(drafting, path, **options):
    """With and without drafts the same is fed, said and kept."""
    plain, none, _ = replies(path, "off", fed=drafting, **options)
    fed = []
    ours, drafted, accepted = replies(path, "on", fed=fed, **options)
    assert fed == drafting
    assert ours == plain
    assert none == 0
    assert drafted / 4 < accepted < drafted


@pytest.mark.parametrize(("policy", "sampling"), by_night(DRAWN_BY, [it for it in DRAWN_BY if it[0] in OF_EACH_ARRAY]))
def test_with_drafts_the_same_is_said_and_kept(model, drafting, policy, sampling):
    check_equal(drafting, model, policy=policy, sampling=sampling)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_type": "q4_0"},
        pytest.param({"reposition": "always", "policy": "snapkv"}, marks=pytest.mark.nightly),
        {"reposition": "always", "policy": "h2o", "kv_type": "q8_0"},
        {"n_ctx_train": 256, "policy": "snapkv"},
        {"evict_every": 8},
        {"policy": "keydiff", "archive": "4MiB"},
        {"ubatch": 2},
        {"threads": 2},
        pytest.param({"quantization": "F16"}, marks=pytest.mark.nightly),
        {"quantization": "Q4_0", "n_embd": 128, "repack": False},
        pytest.param({"architecture": "gemma"}, marks=pytest.mark.nightly),
        {"architecture": "deci"},
        {"architecture": "qwen2", "n_embd": 256},
    ],
    ids=str,
)
def test_so_it_is_with_other_caches_and_models(tiny_model, drafting, options):
    names = {*SHAPE, "n_embd", "architecture"}
    model = tiny_model(**SHAPE | {name: options[name] for name in names & options.keys()})
    check_equal(drafting, model, **{name: options[name] for name in options.keys() - names})


@pytest.mark.parametrize("policy", ["h2o", "ahakv+ada"])
def test_a_draft_ends_with_its_block_while_cells_are_free(model, drafting, policy):
    """Tokens are scored block by block below the budget, too, and the cache keeps no more queries than those of one."""
    check_equal(drafting, model, policy=policy, budget=400)


@pytest.mark.parametrize("options", [{"quantization": "Q8_0"}, {"quantization": "Q4_0"}], ids=str)
def test_so_it_is_with_experts(tmp_path, drafting, options):
    check_equal(drafting, make_family(tmp_path / "model.gguf", "glm4moe", **options))


def test_so_it_is_with_files_and_a_question(model, text_file, drafting):
    file, said = text_file(words(200)), {}
    for prompt_lookup in ("off", "on"):
        with edgekv.Runtime(model, **SETTINGS, prompt_lookup=prompt_lookup) as rt, rt.session() as session:
            if prompt_lookup == "off":
                rt.block_loop.watch = drafting.extend
            asked = [session.ask("Which dog?", [file], max_tokens=50, allow_loops=True) for _ in range(2)]
            said[prompt_lookup] = ["".join(pieces) for pieces in asked]
            assert session.stats.probes > 0
    assert 0 < session.stats.accepted_tokens < session.stats.drafted_tokens
    assert said["on"] == said["off"]


@pytest.mark.parametrize(
    ("quantization", "options", "chosen"),
    [
        ("Q8_0", {}, "on"),
        ("Q4_0", {"isolated": True}, "on"),
        ("Q8_0", {"policy": "keydiff+ada", "kv_type": "q8_0"}, "on"),
        ("Q8_0", {"parallel": 2}, "on"),
        ("Q8_0", {"prompt_lookup": "off"}, "off"),
        ("F16", {}, "on"),
        ("F32", {}, "on"),
    ],
)
def test_drafts_are_made_where_logits_are_the_same_to_the_bit(tiny_model, monkeypatch, quantization, options, chosen):
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    model = tiny_model(**SHAPE | {"quantization": quantization})
    assert edgekv.plan(model, **SETTINGS, **options).prompt_lookup == chosen
    with edgekv.Runtime(model, **SETTINGS, **options) as runtime:
        assert runtime.options.prompt_lookup == runtime.plan.prompt_lookup == chosen


def test_a_processor_on_which_that_was_not_tried_makes_none(model, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert edgekv.plan(model, **SETTINGS).prompt_lookup == "off"
    assert edgekv.plan(model, **SETTINGS, prompt_lookup="on").prompt_lookup == "on"


@pytest.mark.parametrize(("n_exact", "longest"), [(100, DRAFT_TOKENS), (4, 3)])
def test_no_draft_is_longer_than_its_tokens_round_alike(model, drafting, monkeypatch, n_exact, longest):
    """As with weights of which ggml multiplies few columns."""
    shape_of, lengths = Context.shape, []

    def shape(context):
        found = shape_of(context)
        found.n_exact = n_exact
        return found

    monkeypatch.setattr(Context, "shape", shape)
    drafting += range(3, 400)
    with edgekv.Runtime(model, **SETTINGS, prompt_lookup="on") as rt, rt.session() as session:
        decode = rt.block_loop.cache.feed_draft
        rt.block_loop.cache.feed_draft = lambda token, draft: (lengths.append(len(draft)), decode(token, draft))
        "".join(session.chat(words(5), max_tokens=20, allow_loops=True))
    assert max(lengths) == longest


@pytest.mark.nightly
def test_so_it_is_in_a_worker(model):
    plain, ours = (replies(model, prompt_lookup, isolated=True)[0] for prompt_lookup in ("off", "on"))
    assert ours[0] == plain[0]


def near(queries, keys, positions):
    """Scores that depend on every row of the query window."""
    heads = queries.reshape(len(keys), -1, *queries.shape[1:]).mean(axis=(1, 2))
    return np.einsum("hd,hnd->hn", heads, keys).astype(np.float32) + np.float32(1e-3) * positions


def test_so_it_is_with_a_scorer_of_ones_own(model, drafting):
    register("near-drafts", near)
    try:
        check_equal(drafting, model, policy="near-drafts")
    finally:
        unregister("near-drafts")


@pytest.mark.parametrize("history", [False, True])
def test_a_quotation_from_before_the_newest_tokens_is_drafted_if_there_is_a_log(model, monkeypatch, history):
    monkeypatch.setattr(speculation, "WINDOW", 64)
    monkeypatch.setattr(SpeculationGate, "allows_draft", lambda gate, draft: bool(draft))
    text = np.random.default_rng(5).permutation(np.arange(3, 403)).tolist()
    options = SETTINGS | {"prompt_lookup": "on", "archive": "off"}
    with edgekv.Runtime(model, **options) as rt, rt.session(history=history) as session:
        session.read("Once upon a time")
        loop = rt.block_loop
        loop.read(text, lambda _: True)
        assert loop.cache.n_cells < 200  # its beginning was evicted
        for token in text[20:120]:
            loop.step(token, drafts=True)
        if history:
            assert loop.work.accepted_tokens > 60
        else:
            assert loop.work.drafted_tokens == 0


def test_a_snapshot_holds_what_is_searched(model, monkeypatch):
    searched, rounds = [], []

    def propose(history, token, most, log):
        searched.append(history.to_bytes())
        return []

    monkeypatch.setattr(SpeculationGate, "allows_draft", lambda gate, draft: True)
    monkeypatch.setattr(NgramProposer, "propose", propose)
    with edgekv.Runtime(model, **SETTINGS, prompt_lookup="on") as rt, rt.session() as session:
        session.read(words(60))
        snapshot = session.snapshot()
        for _ in range(2):
            session.restore(snapshot)
            list(session.chat("And then?", max_tokens=40, allow_loops=True))
            rounds.append(searched.copy())
            list(session.chat(words(30), max_tokens=4))
            searched.clear()
    assert rounds[0] == rounds[1]
    assert len(rounds[0][0]) > 4 * 60


def test_a_reply_that_is_left_has_said_no_more_than_was_given(model, drafting):
    found = []
    for prompt_lookup in ("off", "on"):
        with (
            edgekv.Runtime(model, **SETTINGS, prompt_lookup=prompt_lookup) as rt,
            rt.session() as session,
        ):
            if prompt_lookup == "off":
                rt.block_loop.watch = drafting.extend
            pieces = session.chat(words(40), max_tokens=40, allow_loops=True)
            first = [next(pieces) for _ in range(10)]
            n_past = session.n_past
            pieces.close()
            again = "".join(session.chat("More.", max_tokens=5, allow_loops=True))
            found.append((first, n_past, again, session.n_past))
    assert found[0] == found[1]
