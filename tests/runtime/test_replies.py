"""Replies of a session: where the sampler of one goes on from, what ends them, and what is put before a question."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from command import words

import edgekv
import edgekv.binding.model
from edgekv.binding import library
from edgekv.generation.request import INSTRUCTION, MAX_TOKENS
from edgekv.generation.sampler import GREEDY, Sampler, Sampling

# nearly every token is as likely as any other: what is said follows from the random numbers
WILD = {"temperature": 100.0, "top_k": 0, "top_p": 1.0, "repeat_penalty": 1.0}


@pytest.fixture(scope="module")
def open_runtime(tiny_model):
    """A function that opens a runtime over a tiny model."""
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    settings = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1}
    return lambda **options: edgekv.Runtime(path, **(settings | options))


@pytest.fixture
def said(monkeypatch):
    """All tokens that are sampled in this process."""
    tokens, sample = [], Sampler.sample
    monkeypatch.setattr(Sampler, "sample", lambda *args: tokens.append(sample(*args)) or tokens[-1])
    return tokens


def dictate(monkeypatch, tokens):
    """Have sessions say these tokens, whatever their model thinks."""
    coming = iter(tokens)
    monkeypatch.setattr(library.bindings(), "llama_sampler_sample", lambda chain, context, i: next(coming))


def reply(session, text="Hello", **options):
    return "".join(session.chat(text, **({"max_tokens": 40} | options)))


def alike(one, other):
    """The share of tokens that two replies have in common, place by place."""
    return np.mean([a == b for a, b in zip(one, other, strict=True)])


@pytest.mark.usefixtures("talkative")
def test_random_numbers_go_on_from_reply_to_reply(local_runtime, said):
    def replies(session, *samplings):
        for sampling in samplings:
            said.clear()
            reply(session, sampling=sampling)
            yield list(said)

    one, other = Sampling(**WILD, seed=3), Sampling(**WILD, seed=4)
    with local_runtime.session() as session:
        first, second, third = replies(session, one, one, one)
        assert max(alike(first, second), alike(first, third), alike(second, third)) < 0.3
    with local_runtime.session() as session:
        again, in_between, anew = replies(session, one, other, one)
        assert again == first
        assert alike(in_between, first) < 0.3
        assert alike(anew, first) > 0.6  # another Sampling ends what went on: this one begins where it began
    with local_runtime.session() as session:
        (_,) = replies(session, one)
        session.read("and something more")
        (after,) = replies(session, one)
        assert alike(after, second) > 0.6  # reading says nothing


def test_replies_of_a_worker_go_on_as_those_of_this_process(runtime, local_runtime):
    texts = []
    for rt in (runtime, local_runtime):
        with rt.session() as session:
            sampling = Sampling(temperature=2.0, repeat_penalty=1.5, seed=1)
            texts.append([reply(session, sampling=sampling) for _ in range(3)])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


@pytest.mark.parametrize("seed", [5, None])
def test_a_snapshot_holds_random_numbers_and_penalties(runtime, seed):
    sampling = Sampling(temperature=2.0, repeat_penalty=1.5, seed=seed)
    with runtime.session() as session:
        reply(session, sampling=sampling)
        taken = session.snapshot()
        expected = [reply(session, sampling=sampling) for _ in range(2)]
        reply(session, sampling=GREEDY)
        for snapshot in (taken, pickle.loads(pickle.dumps(taken))):
            session.restore(snapshot)
            assert [reply(session, sampling=sampling) for _ in range(2)] == expected


def test_the_end_of_a_reply_is_not_penalised_in_the_next(local_runtime, monkeypatch):
    end = next(t for t in range(local_runtime.model.n_vocab) if local_runtime.model.is_end(t))
    with local_runtime.session() as session:
        dictate(monkeypatch, [41, 42, 43, end])
        reply(session)
        assert session.stats.finish_reason == "end"
        assert session._conversation.state.sampler.newest == (41, 42, 43)
        dictate(monkeypatch, [44, 45])
        reply(session, max_tokens=2)
        assert session._conversation.state.sampler.newest == (41, 42, 43, 44, 45)


@pytest.mark.usefixtures("talkative")
def test_a_reply_that_goes_round_in_a_circle_ends(local_runtime, monkeypatch):
    circle = [*range(40, 47)]
    with local_runtime.session() as session:
        for reason, n, options in (("loop", 62, {}), ("length", 300, {"allow_loops": True})):
            dictate(monkeypatch, [48, 49, *circle * 100])
            for say in (session.chat, session.ask):
                list(say("Hello", max_tokens=300, **options))
                assert (session.stats.finish_reason, session.stats.generated_tokens) == (reason, n)
                dictate(monkeypatch, [48, 49, *circle * 100])
        # the next reply is not held to have begun where this one looped
        dictate(monkeypatch, circle * 4)
        reply(session, max_tokens=28)
        assert session.stats.finish_reason == "length"


@pytest.mark.usefixtures("talkative")
def test_replies_have_a_longest_length_unless_none_is_asked_for(open_runtime, monkeypatch):
    with open_runtime() as rt, rt.session() as session:
        for n, options in ((MAX_TOKENS, {}), (MAX_TOKENS + 300, {"max_tokens": None})):
            monkeypatch.setattr(edgekv.binding.model.Model, "is_end", lambda model, token: token == 1)
            dictate(monkeypatch, [*(5 + i * i % 487 for i in range(MAX_TOKENS + 300)), 1])
            list(session.chat("Hello", **options))
            assert session.stats.generated_tokens == n
            assert session.stats.finish_reason == ("length" if not options else "end")


def test_a_reply_ends_before_a_stop_text(runtime):
    with runtime.session() as session:
        empty = session.snapshot()
        whole = reply(session)
        n_whole = session.stats.generated_tokens
        assert len(whole) > 30
        for stop in (whole[12:15], (whole[14:18], "never", whole[25:28]), [whole[:1]]):
            session.restore(empty)
            pieces = list(session.chat("Hello", max_tokens=40, stop=stop))
            ends = min(whole.find(text) for text in ([stop] if isinstance(stop, str) else stop) if text in whole)
            assert "".join(pieces) == whole[:ends]
            assert session.stats.finish_reason == "stop"
            assert session.stats.generated_tokens < n_whole
            assert reply(session, "Go on", max_tokens=3) or session.stats.finish_reason == "end"
        # what only looked like the beginning of one is shown in the end
        session.restore(empty)
        assert reply(session, stop=whole[-3:] + "never") == whole
        assert session.stats.finish_reason != "stop"


def test_the_model_cannot_end_a_reply_that_ignores_its_end(runtime, local_runtime):
    def ended(**options):
        ends = dict.fromkeys(local_runtime.model.ends, 1000.0)
        with runtime.session() as session:
            text = reply(session, allow_loops=True, sampling=Sampling(logit_bias=ends), **options)
            return text, session.stats.finish_reason, session.stats.generated_tokens

    assert ended() == ("", "end", 0)
    text, *how = ended(ignore_eos=True)
    assert how == ["length", 40]
    before, reason, _ = ended(ignore_eos=True, stop=text[10:13])
    assert (before, reason) == (text[: text.index(text[10:13])], "stop")
    with pytest.raises(edgekv.ConfigError, match="ignore_eos=True needs max_tokens"):
        ended(ignore_eos=True, max_tokens=None)


def test_what_ends_a_reply_is_checked(runtime):
    with runtime.session() as session:
        for say in (session.chat, session.ask, session.generate):
            for options in (
                {"stop": ""},
                {"stop": ["a", ""]},
                {"stop": [1]},
                {"sampling": {"seed": 1}},
                *({"max_tokens": n} for n in (-1, True, 2.5, "5", float("inf"))),
            ):
                name, _ = next(iter(options.items()))
                with pytest.raises(edgekv.ConfigError, match=f"{name}=.* is not possible; give"):
                    say("Hello", **options)
        assert session.n_past == 0


def test_a_question_about_a_text_comes_after_an_instruction(local_runtime, tmp_path, monkeypatch):
    book = tmp_path / "book.txt"
    book.write_text(words(60))
    model, cache = local_runtime.model, local_runtime.block_loop.cache
    fed, probed = [], []
    feed, probe = cache.feed, cache.probe
    monkeypatch.setattr(cache, "feed", lambda tokens, **how: (fed.extend(tokens), feed(tokens, **how))[1])
    monkeypatch.setattr(cache, "probe", lambda tokens, ends: (probed.extend(tokens), probe(tokens, ends))[1])

    def heard(ask):
        fed.clear()
        probed.clear()
        with local_runtime.session() as session:
            ask(session)
        return ["".join(model.text(tokens)) for tokens in (fed, probed)]

    told = f"word59\n\n{INSTRUCTION} Who?"
    for expected, ask in {
        told: lambda session: list(session.ask("Who?", [book], max_tokens=1)),
        "word59\n\nWho?": lambda session: list(session.ask("Who?", [book], instruction="", max_tokens=1)),
        "word59\n\nBriefly: Who?": lambda s: list(s.ask("Who?", [book], instruction="Briefly:", max_tokens=1)),
        "word59\n\nWho? ": lambda session: list(session.chat("Who? ", files=[book], max_tokens=1)),
    }.items():
        prompt, question = heard(ask)
        assert expected in prompt
        assert prompt.count(INSTRUCTION) == (expected == told)
        assert "Who?" in question
        assert INSTRUCTION not in question
        assert "Briefly" not in question

    prompt, _ = heard(lambda session: (session.read(files=[book]), list(session.ask("Who?", max_tokens=1))))
    assert told in prompt
    prompt, _ = heard(lambda session: list(session.ask("Who?", max_tokens=1)))
    assert INSTRUCTION not in prompt
