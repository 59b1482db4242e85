"""Tokens that end a reply, and tokens before which nothing ends it."""

from __future__ import annotations

import pytest
from small import SETTINGS

import edgekv


@pytest.fixture(scope="module")
def runtime(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization="Q8_0")
    with edgekv.Runtime(path, **(SETTINGS | {"grammars": True})) as rt:
        yield rt


def forced(runtime, *tokens):
    """Return a sampling that says a token wherever it may, and otherwise the next one."""
    biases = {token: 10_000 - 1_000 * i for i, token in enumerate(tokens)}
    return edgekv.Sampling(repeat_penalty=1, logit_bias=biases)


def said(session, **options):
    text = "".join(session.generate("Hello", **({"max_tokens": 20, "allow_loops": True} | options)))
    return text, session.stats.finish_reason, session.stats.generated_tokens


def test_a_token_ends_a_reply_and_is_no_part_of_it(runtime):
    (a,), (b,) = (runtime.tokenize(letter) for letter in "ab")
    with runtime.session() as session:
        assert said(session, sampling=forced(runtime, a), stop_tokens=[b, a]) == ("", "end", 0)
        assert said(session, sampling=forced(runtime, a), stop_tokens=[b], max_tokens=3) == ("aaa", "length", 3)
        assert said(session, sampling=forced(runtime, a), stop_tokens=[1 << 30], max_tokens=3)[1] == "length"
        assert said(session, sampling=forced(runtime, a), stop_tokens=None, max_tokens=3)[1] == "length"


def test_nothing_ends_a_reply_before_min_tokens(runtime):
    (a,), (b,) = (runtime.tokenize(letter) for letter in "ab")
    (end, *_) = runtime.model.ends
    with runtime.session() as session:
        assert said(session, sampling=forced(runtime, end, a)) == ("", "end", 0)
        assert said(session, sampling=forced(runtime, end, a), min_tokens=5) == ("aaaaa", "end", 5)
        assert said(session, sampling=forced(runtime, b, a), min_tokens=4, stop_tokens=[b]) == ("aaaa", "end", 4)
        loop = {"sampling": forced(runtime, a), "max_tokens": 90, "allow_loops": False}
        assert said(session, **loop)[1:] == ("loop", 60)
        assert said(session, **loop, min_tokens=80)[1:] == ("loop", 80)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_tokens": 5}, "stop_tokens=5 is no list"),
        ({"stop_tokens": [-1]}, "stop_tokens=.* give ids"),
        ({"stop_tokens": ["x"]}, "stop_tokens=.* give ids"),
        ({"min_tokens": -1}, "min_tokens=-1 is not possible"),
        ({"min_tokens": 21}, "min_tokens=21 .* to max_tokens=20"),
        ({"min_tokens": 2, "grammar": 'root ::= "a"'}, "min_tokens=2 does not go with a grammar"),
    ],
)
def test_what_cannot_be_is_refused(runtime, options, message):
    with runtime.session() as session, pytest.raises(edgekv.ConfigError, match=message):
        said(session, **options)
