"""The choice of a token, against the logits themselves, and settings that are refused."""

from __future__ import annotations

from collections import deque
from contextlib import closing

import numpy as np
import pytest

import edgekv
from edgekv.generation.sampler import Sampler, SamplerState, Sampling

N_STEPS = 60


@pytest.fixture
def runtime(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=2048)
    with edgekv.Runtime(path, memory="4GiB", budget=64, block=32, recent=16, threads=1) as rt:
        yield rt


def choices(runtime, sampling, before=None):
    """Yield (logits (n_vocab,) float32, token chosen from them) of every step of a reply."""
    sampler = Sampler(sampling, before)
    runtime.block_loop.read(runtime.model.tokenize("the house in the river"), lambda n: True)
    for _ in range(N_STEPS):
        logits = runtime.context.logits_array().copy()
        token = sampler.sample(runtime.context)
        yield logits, token
        runtime.block_loop.step(token)
    sampler.close()


def penalised(logits, said, penalty):
    """The logits (n_vocab,) after a penalty on the tokens of `said`, looked at one by one."""
    result = logits.copy()
    for token in set(said):
        result[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    return result


# ways to ask for the best token: so cold, there is no chance for another
BEST = {
    "greedy": {},
    "top 1": {"temperature": 1.0, "top_k": 1},
    "cold": {"temperature": 1e-4, "top_k": 0, "top_p": 1.0},
}


@pytest.mark.parametrize("repeat_last", [1, 5, 64])
@pytest.mark.parametrize("penalty", [1.0, 1.25, 8.0])
@pytest.mark.parametrize("best", BEST.values(), ids=BEST)
def test_the_best_token_is_the_one_after_the_penalty(runtime, best, penalty, repeat_last):
    said = deque(maxlen=repeat_last)
    n_changed = 0
    for logits, token in choices(runtime, Sampling(repeat_penalty=penalty, repeat_last=repeat_last, **best)):
        assert token == penalised(logits, said, penalty).argmax()
        n_changed += token != logits.argmax()
        said.append(token)
    assert (n_changed > 0) == (penalty > 1)


def test_a_sampler_goes_on_with_the_tokens_that_were_said_last(runtime):
    """Without them it would choose them again."""
    sampling = Sampling(repeat_penalty=8.0, repeat_last=5)
    first = [token for _, token in choices(runtime, sampling)]
    said, again = deque(first[:5], maxlen=5), []
    runtime.block_loop.clear()
    for logits, token in choices(runtime, sampling, SamplerState(sampling, 0, 5, tuple(said))):
        assert token == penalised(logits, said, 8.0).argmax()
        said.append(token)
        again.append(token)
    assert again[0] != first[0]


def test_where_a_sampler_stands(runtime):
    sampling = Sampling(temperature=1.0, repeat_last=3, seed=7)
    runtime.block_loop.read(runtime.model.tokenize("the house"), lambda n: True)
    with closing(Sampler(sampling)) as sampler:
        assert sampler.state(ended=False) == SamplerState(sampling, 7)
        said = [sampler.sample(runtime.context) for _ in range(5)]
        stands = sampler.state(ended=False)
        assert stands == SamplerState(sampling, 7, 5, tuple(said[2:]))
        assert sampler.state(ended=True) == SamplerState(sampling, 7, 5, tuple(said[1:-1]))
    with closing(Sampler(sampling, stands)) as sampler:
        said += [sampler.sample(runtime.context)]
        assert sampler.state(ended=False) == SamplerState(sampling, 7, 6, tuple(said[3:]))
    other = Sampling(temperature=1.0, repeat_last=3, seed=8)
    with closing(Sampler(other, stands)) as sampler:
        assert sampler.state(ended=False) == SamplerState(other, 8)


def test_only_tokens_that_are_likely_enough_are_drawn(runtime):
    """At a high temperature, which would draw any; min_p is taken before it, as top_k and top_p are."""
    sampling = Sampling(temperature=100.0, top_k=0, top_p=1.0, min_p=0.5, repeat_penalty=1.0, seed=1)
    n_others = 0
    for logits, token in choices(runtime, sampling):
        assert logits[token] >= logits.max() + np.log(0.5) - 1e-4
        n_others += token != logits.argmax()
    assert n_others > 0


def test_the_best_k_tokens_are_those_after_the_penalty(runtime):
    """Many are drawn at a high temperature: all from the best after the penalty, some not from the best before."""
    sampling = Sampling(temperature=50.0, top_k=3, top_p=1.0, seed=1, repeat_penalty=8.0, repeat_last=5)
    said = deque(maxlen=5)
    n_promoted = 0
    for logits, token in choices(runtime, sampling):
        assert token in np.argsort(-penalised(logits, said, 8.0))[:3]
        n_promoted += token not in np.argsort(-logits)[:3]
        said.append(token)
    assert n_promoted > 0


def test_a_penalty_lets_a_seed_reproduce_a_reply(runtime):
    def reply():
        sampling = Sampling(temperature=1.0, seed=5, repeat_penalty=1.5)
        with runtime.session() as session:
            return "".join(session.chat("Hello", max_tokens=30, sampling=sampling))

    assert reply() == reply()


BAD = {
    "temperature": [-1.0, 101, float("nan"), "1", None],
    "top_k": [-1, 2.5, True, 1 << 21],
    "top_p": [-0.1, 1.1, float("nan")],
    "min_p": [-0.1, 1.1, float("nan"), None],
    "repeat_penalty": [0.9, 0, -1.0, 11.0, float("nan"), float("inf"), "1.1", None, True],
    "frequency_penalty": [-2.1, 2.1, float("nan"), "1", None],
    "presence_penalty": [-2.1, 2.1, True],
    "repeat_last": [0, -1, 4097, 1.5, None, True],
    "logit_bias": [{-1: 1}, {1 << 31: 1}, {True: 1}, {"5": 1}],
    "seed": [-2, 2**32 - 1, 1.5, "0"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_settings_that_cannot_work_are_refused(name, value):
    with pytest.raises(edgekv.ConfigError, match=rf"{name}=.* is not possible; give a .*number in \["):
        Sampling(**{name: value})


@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0.0), (0.0, 1.5), (0.7, 0.3), (-0.5, 0.0), (0.0, -2.0)])
@pytest.mark.parametrize("best", BEST.values(), ids=BEST)
def test_tokens_are_penalised_by_how_often_they_came(runtime, best, frequency, presence):
    said = deque(maxlen=8)
    sampling = Sampling(
        repeat_penalty=1.0, frequency_penalty=frequency, presence_penalty=presence, repeat_last=8, **best
    )
    for logits, token in choices(runtime, sampling):
        for other in set(said):
            logits[other] -= said.count(other) * frequency + presence
        assert token == logits.argmax()
        said.append(token)


@pytest.mark.parametrize("best", BEST.values(), ids=BEST)
def test_a_bias_is_added_to_the_logits_while_a_token_is_chosen(runtime, best):
    biases = {5: 3.0, 9: -10_000, 40: 1.5, 41: 1.5}
    sampling = Sampling(repeat_penalty=1.0, logit_bias=biases, **best)
    for logits, token in choices(runtime, sampling):
        own = logits.copy()
        assert np.array_equal(runtime.context.logits_array(), own)  # log probabilities are told of these
        for other, bias in biases.items():
            logits[other] += bias
        assert token == logits.argmax() != 9


def test_seed_minus_one_is_any_seed():
    assert Sampling(seed=-1) == Sampling()


def test_biases_are_kept_in_order_and_are_few():
    assert Sampling(logit_bias={7: 1, 3: -2.5}).logit_bias == ((3, -2.5), (7, 1))
    assert Sampling(logit_bias=[(7, 1), (3, -2.5)]) == Sampling(logit_bias={3: -2.5, 7: 1})
    with pytest.raises(edgekv.ConfigError, match=r"logit_bias\[7\]=.* number in \["):
        Sampling(logit_bias={7: 1e9})
    with pytest.raises(edgekv.ConfigError, match="logit_bias=5 is not possible; give a mapping"):
        Sampling(logit_bias=5)
    with pytest.raises(edgekv.ConfigError, match="has 1025 tokens, but at most 1024"):
        Sampling(logit_bias=dict.fromkeys(range(1025), 1.0))


def test_a_token_that_the_vocabulary_lacks_is_named_before_anything_is_read(runtime):
    with runtime.session() as session:
        with pytest.raises(edgekv.ConfigError, match="logit_bias names token 99999999"):
            list(session.chat("Hello", sampling=Sampling(logit_bias={99_999_999: 1})))
        assert session.n_past == 0


def test_no_token_at_all_may_be_asked_for(runtime):
    with runtime.session(history=True) as session:
        asked = [{"role": "user", "content": "Hello"}]
        assert list(session.continue_from(asked, max_tokens=0)) == []
        assert (session.stats.finish_reason, session.stats.generated_tokens) == ("length", 0)
        assert session.n_past == session.stats.read_tokens > 0
        n_read = session.n_past
        list(session.continue_from([*asked, {"role": "assistant", "content": ""}, *asked], max_tokens=3))
        assert session.stats.reused_tokens == n_read
