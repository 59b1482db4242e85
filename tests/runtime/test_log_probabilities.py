"""Pieces with their tokens and how probable the model held these to be, against a float64 reference."""

from __future__ import annotations

import math
import pickle
import tracemalloc

import numpy as np
import pytest

import edgekv
from edgekv.generation.logprobs import (
    PACKED_BYTES,
    PART,
    LogprobRecorder,
    NextTokenLogprobs,
    Piece,
    Token,
    TokenLogprob,
    packed,
    unpacked,
)

DRAWN = edgekv.Sampling(temperature=3.0, top_k=0, top_p=1.0, seed=5, repeat_penalty=1.5)


def pieces(session, text="Hello", **options):
    return list(session.chat(text, **({"max_tokens": 30, "allow_loops": True, "logprobs": 4} | options)))


@pytest.mark.usefixtures("talkative")
def test_tokens_and_their_probabilities(local_runtime):
    logits = []
    with local_runtime.session() as session:
        sample = edgekv.generation.sampler.Sampler.sample

        def noted(sampler, context, row=-1):
            logits.append(context.logits_array(row).astype(np.float64))
            token = sample(sampler, context, row)
            chosen.append(token)
            return token

        chosen = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(edgekv.generation.sampler.Sampler, "sample", noted)
            said = pieces(session, sampling=DRAWN)
        tokens = [token for piece in said for token in piece.tokens]
    assert [token.id for token in tokens] == chosen[: len(tokens)]
    assert len(tokens) >= 25
    for token, row in zip(tokens, logits, strict=False):
        reference = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert token.logprob == pytest.approx(reference[token.id], rel=1e-6)
        assert [other.id for other in token.top] == np.argsort(-reference, kind="stable")[:4].tolist()
        np.testing.assert_allclose([other.logprob for other in token.top], np.sort(reference)[::-1][:4], rtol=1e-6)


@pytest.mark.usefixtures("talkative")
def test_pieces_are_the_texts_that_they_are_without(local_runtime):
    def said(session, **options):
        return "".join(session.chat("Hello", max_tokens=40, allow_loops=True, sampling=DRAWN, **options))

    with local_runtime.session() as plain, local_runtime.session() as noted:
        text = said(plain)
        assert said(noted, logprobs=0) == text


@pytest.mark.nightly
def test_the_worker_gives_the_same(open_runtime):
    found = []
    for isolated in (False, True):
        with open_runtime(isolated=isolated) as rt, rt.session() as session:
            said = pieces(session, sampling=DRAWN)
            assert all(type(piece) is Piece for piece in said)
            found.append([(str(piece), piece.tokens) for piece in said])
    assert found[0] == found[1]
    assert found[0]


def test_the_most_probable_tokens_of_a_large_vocabulary():
    """Probable tokens may lie anywhere. A look-up takes no memory of the vocabulary's size, which no plan counts."""
    logits = np.random.default_rng(0).normal(size=3 * PART + 100).astype(np.float32)
    logits[[5, 2 * PART, len(logits) - 1]] = [20.0, 21.0, 22.0]
    wide = logits.astype(np.float64)
    reference = wide - np.log(np.exp(wide).sum())
    next_token = NextTokenLogprobs(logits, 20)
    assert [token for token, _ in next_token._top] == np.argsort(-reference, kind="stable")[:20].tolist()
    np.testing.assert_allclose([logprob for _, logprob in next_token._top], np.sort(reference)[::-1][:20], rtol=1e-6)
    large = np.zeros(64 * PART, np.float32)
    tracemalloc.start()
    NextTokenLogprobs(large, 20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < large.nbytes / 4


def test_tokens_are_packed():
    others = (TokenLogprob(1, b"", float("-inf")), TokenLogprob(2, b"\n", -1.5))
    tokens = [Token(7, "é".encode(), -0.5, others), Token(8, b"", 0.0, ())]
    data = b"".join(map(packed, tokens))
    assert list(unpacked(data)) == tokens
    assert Piece("text", data).tokens == tuple(tokens)
    assert pickle.loads(pickle.dumps(Piece("text", data))).tokens == tuple(tokens)


def test_a_prompt_has_the_probabilities_of_all_its_tokens(runtime, local_runtime):
    """Also those without a text, wherever they stand."""
    model = local_runtime.model
    silent = next(token for token in range(model.n_vocab) if not model.piece(token))
    words = runtime.tokenize("a b c")
    for prompt in (words, [*words, silent, silent], [silent, *words, silent, *words], [silent]):
        with runtime.session(history=True) as session:
            options = {"logprobs": 1, "prompt_logprobs": True, "ignore_eos": True}
            told = [token for piece in session.continue_from(prompt, max_tokens=0, **options) for token in piece.tokens]
        assert [token.id for token in told] == prompt
        assert math.isnan(told[0].logprob)
        assert all(token.logprob < 0 for token in told[1:])


@pytest.mark.usefixtures("talkative")
def test_a_piece_takes_no_more_than_is_planned_for_it(local_runtime):
    with local_runtime.session() as session:
        said = pieces(session, logprobs=20, sampling=DRAWN)
    assert 0 < sum(len(piece.packed) for piece in said) <= 30 * 21 * PACKED_BYTES


def test_nobody_pays_who_does_not_ask(session):
    assert all(type(piece) is str for piece in session.chat("Hello", max_tokens=10))


@pytest.mark.parametrize("logprobs", [-1, 21, True, 1.5])
def test_numbers_that_are_not_possible(session, logprobs):
    with pytest.raises(edgekv.ConfigError, match=r"logprobs=.* is not possible; give a number"):
        session.chat("Hello", logprobs=logprobs)


def token(text):
    return Token(0, text.encode(), 0.0, ())


def noted_pieces(texts, given):
    """Return the pieces made of tokens' texts and of texts that are given out: (piece, its tokens) each."""
    noted = LogprobRecorder()
    coming = iter(given)

    def said():
        for text in texts:
            noted.add(token(text))
            yield text

    def cut(texts):
        for _ in texts:
            yield next(coming)
        yield from coming

    return [(str(piece), [t.piece.decode() for t in piece.tokens]) for piece in noted.pieces(cut(noted.follow(said())))]


def test_tokens_go_with_the_piece_that_they_begin_in():
    assert noted_pieces(["a", "bc"], ["a", "bc"]) == [("a", ["a"]), ("bc", ["bc"])]
    assert noted_pieces(["", "", "é"], ["", "", "é"]) == [("", []), ("", []), ("é", ["", "", "é"])]
    held = noted_pieces(["a", "\n", "b"], ["a", "", "\nb"])
    assert held == [("a", ["a"]), ("", []), ("\nb", ["\n", "b"])]


def test_a_token_that_a_stop_text_cuts_goes_with_what_comes_before():
    assert noted_pieces(["a", "b\nc"], ["a", "b"]) == [("a", ["a"]), ("b", ["b\nc"])]
    assert noted_pieces(["a", "\n", "\n"], ["a", "", ""]) == [("a", ["a"]), ("", []), ("", [])]


def test_impossible_tokens_have_no_probability():
    next_token = NextTokenLogprobs(np.array([0.0, -np.inf, 0.0], np.float32), 0)
    assert next_token._of(0) == pytest.approx(np.log(0.5))
    assert next_token._of(1) == -np.inf
