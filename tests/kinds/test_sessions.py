"""Sessions of every family that runs: snapshots, and the same in a worker process."""

from __future__ import annotations

import itertools

import pytest
from diagonals import by_night, diagonal
from evicting import OF_EACH_STATE, SHALLOW, by_turns

import edgekv
from edgekv.binding.model import Model

TEXT = "the old house by the river stood empty since the flood of that year " * 12


@pytest.fixture
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)


def replies(path, **options):
    """A reply, the same after going back to a snapshot, and the same in another session; and what it saw."""
    common = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16}
    with edgekv.Runtime(path, **common, **options) as runtime:
        with runtime.session() as session:
            session.read(TEXT)
            taken = session.snapshot()
            found = ["".join(session.chat("What is there?", max_tokens=16))]
            "".join(session.chat("And now another question?", max_tokens=4))
            session.restore(taken)
            found.append("".join(session.chat("What is there?", max_tokens=16)))
        with runtime.session() as session:
            session.restore(taken)
            found.append("".join(session.chat("What is there?", max_tokens=16)))
            return found, session.n_past


PAIRS = diagonal(SHALLOW, ["keydiff", "snapkv"])


@pytest.mark.parametrize(
    ("name", "policy"), by_night(PAIRS, [case for case in PAIRS if case[0] in OF_EACH_STATE[1::3]])
)
def test_a_session_goes_back_to_its_snapshot(talkative, family_model, name, policy):
    (first, again, elsewhere), n_past = replies(family_model(name), policy=policy)
    assert first == again == elsewhere
    assert n_past > 200


@pytest.mark.two_processes
@pytest.mark.parametrize("name", by_night(["lfm2", "gemma3", "mamba2", "gpt-oss", "deepseek2"], ["lfm2"]))
def test_a_worker_says_the_same(family_model, name):
    """One model of each kind of layer. Where a reply ends by itself, too: nobody talks on in the worker."""
    path = family_model(name)
    assert replies(path, isolated=True, archive="off") == replies(path, archive="off")


def conversation(session, question):
    """The pieces of two replies about a text; others may come between any two."""
    session.read(f"{question} {TEXT}")
    yield session.n_past
    for asked in (question, "And now another question?"):
        yield from session.chat(asked, max_tokens=9)
        yield session.n_past, session.n_cells, session.budgets()


@pytest.mark.parametrize(
    ("name", "isolated"),
    by_night(
        [(name, False) for name in ("lfm2", "granitehybrid", "qwen3next", "gemma3", "gpt-oss", "llama4", "mamba2")]
        + [(name, True) for name in ("lfm2", "gemma3", "mamba2")],
        [
            ("lfm2", False),
            ("llama4", False),
            ("gemma3", True),
        ],
    ),
)
def test_sessions_that_take_turns_say_what_each_says_alone(talkative, family_model, tmp_path, name, isolated):
    """Windows and states go along, in memory and by way of the disk."""
    questions = ["What is there?", "Who was it?"]
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "swap_dir": tmp_path}
    size = edgekv.plan(family_model(name), **options).session_bytes
    with edgekv.Runtime(family_model(name), swap_memory=size, isolated=isolated, **options) as runtime:
        sessions = [runtime.session() for _ in questions]
        found = [[] for _ in questions]
        for steps in itertools.zip_longest(*map(conversation, sessions, questions)):
            for mine, step in zip(found, steps, strict=True):
                mine += [] if step is None else [step]
        for question, mine in zip(questions, found, strict=True):
            with runtime.session() as session:
                assert list(conversation(session, question)) == mine
        assert len(found[0]) > 4 or isolated
        assert runtime.plan.session_bytes == size


@pytest.mark.parametrize("name", by_turns(0))
def test_a_text_is_read_once_for_many_questions(talkative, family_model, name):
    """Windows, states and latents begin where those of the session stood that read it."""
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16}
    with edgekv.Runtime(family_model(name), **options) as runtime:
        tokens = runtime.tokenize(TEXT)[:300]
        ends = [runtime.tokenize(end) for end in (" a b c", " d e f g", " a b c")]
        found = []
        for end in ends:
            with runtime.session(history=True) as session:
                reply = "".join(session.continue_from(tokens + end, max_tokens=8, shared=300, allow_loops=True))
                found.append((reply, session.n_cells, session.stats.reused_tokens))
        assert [reused for *_, reused in found] == [0, 288, 288]
        assert found[0][:2] == found[2][:2]


@pytest.mark.parametrize("name", by_turns(1))
def test_a_plan_knows_what_a_session_takes(talkative, family_model, name):
    options = {"memory": "4GiB", "budget": 40, "block": 16, "recent": 8, "threads": 1, "focus": False}
    options["prompt_lookup"] = "off"  # a plan counts all tokens that drafts are looked up in
    with edgekv.Runtime(family_model(name), **options) as runtime, runtime.session() as session:
        sizes = [
            runtime.block_loop.snapshot_bytes for _ in session.generate(TEXT[:300], max_tokens=40, allow_loops=True)
        ]
        most, has_windows = runtime.plan.session_bytes, runtime.block_loop.cache.shape.window_cells > 0
        assert (0 if has_windows else 0.95 * most) < max(sizes) <= most  # the text is shorter than a window


@pytest.mark.parametrize("name", by_turns(2))
def test_a_session_goes_back_to_its_turns(talkative, family_model, name):
    """By their checkpoints to the bit; without, by reading again in other blocks."""
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "focus": False}
    forgetting = options | {"archive": "off"}  # archived rows are not read again
    with edgekv.Runtime(family_model(name), **forgetting) as runtime, runtime.session(history=True) as session:
        session.read(TEXT)
        ends = []
        for question in ("What is there?", "And now?"):
            ends.append((session.n_past, question, "".join(session.chat(question, max_tokens=8))))
        for n_past, question, reply in reversed(ends):
            session.rewind(n_past)
            assert (session.n_past, session.stats.read_tokens) == (n_past, 0)
            assert "".join(session.chat(question, max_tokens=8)) == reply
        session.rewind(ends[0][0] - 7)
        assert (session.n_past, session.stats.reused_tokens) == (ends[0][0] - 7, 0)
        assert "".join(session.chat("Why?", max_tokens=4))


@pytest.mark.parametrize("name", ["lfm2", "gemma3", "mamba2"])
def test_what_cannot_be_dropped_token_by_token_is_not_drafted(family_model, name):
    with pytest.raises(edgekv.ConfigError, match="keeps sliding windows or recurrent states; leave prompt_lookup out"):
        edgekv.plan(family_model(name), memory="4GiB", budget=64, block=32, prompt_lookup="on")
    assert edgekv.plan(family_model(name), memory="4GiB", budget=64, block=32).prompt_lookup == "off"


@pytest.mark.parametrize("name", by_turns(0))
def test_histories_go_on_from_a_beginning_as_if_each_were_the_first(talkative, family_model, name):
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "focus": False}
    with edgekv.Runtime(family_model(name), **options) as runtime:
        tokens = runtime.tokenize(TEXT)
        histories = [tokens[:160] + tokens[k : k + 20] for k in (3, 9)]
        found = []
        for history in histories:
            with runtime.session(history=True) as session:
                session.prefill_prefix(history[:160])
                found.append("".join(session.continue_from(history, max_tokens=8)))
        with runtime.session(history=True) as session:
            session.prefill_prefix(histories[0][:160])
            for history, reply in [*zip(histories, found, strict=True)][::-1]:
                session.rewind(160)
                assert "".join(session.continue_from(history, max_tokens=8)) == reply
                assert session.stats.reused_tokens == 160


@pytest.mark.parametrize("name", ["gemma3", "gemma4", "lfm2", "deepseek2", "mamba2"])
def test_what_is_kept_has_shades(talkative, family_model, name):
    """Of the layers whose rows are evicted; a model of states alone holds no token, and says so."""
    common = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1}
    with edgekv.Runtime(family_model(name), **common) as runtime, runtime.session(history=True) as session:
        "".join(session.chat(TEXT, max_tokens=4))
        (user, _) = session.turns()
        runs = list(session.kept(user))
        assert "".join(text for text, _ in runs) == "".join(session.text(user))
        shades = {shade for _, shade in runs}
        assert shades == {0} if name == "mamba2" else shades >= {4, 5}  # held by all heads, and archived
