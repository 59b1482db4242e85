"""A session whose process goes over its ceiling: the reply ends with an error, and the session goes on."""

from __future__ import annotations

import pytest
from command import words

import edgekv
from edgekv.memory import process

OPTIONS = {"memory": "1GiB", "budget": 64, "block": 16, "threads": 1, "focus": False, "archive": "off"}
PROMPT = words(60)


@pytest.fixture
def runtime(tiny_model):
    with edgekv.Runtime(tiny_model(n_layer=2, n_ctx_train=2048), **OPTIONS) as runtime:
        yield runtime


@pytest.fixture
def exceed(monkeypatch):
    """A function: the n-th look at the peak from now, and that one alone, finds one byte more than the ceiling."""

    def arm(n):
        looks = iter(range(n))
        monkeypatch.setattr(process, "peak_resident_bytes", lambda: (1 << 30) + (next(looks, None) == n - 1))

    return arm


def test_reading_ends_after_the_block_at_hand(runtime, exceed):
    with runtime.session() as session:
        exceed(2)
        with pytest.raises(edgekv.CeilingExceededError, match="above memory="):
            list(session.chat(PROMPT, max_tokens=3))
        assert session.stats.finish_reason == "ceiling"
        assert session.stats.read_tokens == session.n_past == 2 * 16
        assert runtime.guard.n_exceeded == 1
        list(session.chat("Go on.", max_tokens=3))
        assert session.stats.finish_reason == "length"
        assert session.n_past > 2 * 16
        assert runtime.guard.n_exceeded == 1


def test_after_a_whole_prompt_the_reply_is_the_assistants(runtime, exceed):
    with runtime.session() as session:
        exceed(1)
        with pytest.raises(edgekv.CeilingExceededError):
            list(session.chat("x", max_tokens=3))
        assert session.n_past == session.stats.prompt_tokens
        assert session._conversation.state.turns == "assistant"


def test_generation_is_looked_at_every_block(tiny_model, runtime, exceed):
    """The tokens fed until then are those of a session without a fault: the next reply is the same."""
    sampling = edgekv.Sampling(temperature=1.0, seed=4)
    replies = []
    for n_said in (1000, 32):
        with runtime.session() as session:
            said = []
            list(session.generate("Hello", max_tokens=1))
            if n_said == 1000:
                exceed(1 + 2)  # one look at the prompt's only block, then one every 16 tokens
                with pytest.raises(edgekv.CeilingExceededError):
                    said.extend(session.generate(" and", max_tokens=n_said, sampling=sampling))
                assert session.stats.generated_tokens == 32
                assert session._conversation.state.pending == ()
            else:
                said += session.generate(" and", max_tokens=n_said, sampling=sampling)
            replies.append(("".join(said), "".join(session.generate(" then", max_tokens=10))))
    assert replies[0] == replies[1]


def test_a_reply_tells_the_peak_since_the_ceiling_moved(runtime, monkeypatch):
    peak, resident = 900 << 20, 10 << 20
    monkeypatch.setattr(process, "peak_resident_bytes", lambda: peak)
    monkeypatch.setattr(process, "resident_bytes", lambda: resident)
    with runtime.session() as session:
        list(session.chat("x", max_tokens=3))
        assert session.stats.peak_rss_bytes == peak
        runtime.memory = 512 << 20
        list(session.chat("x", max_tokens=3))
        assert session.stats.peak_rss_bytes == resident
