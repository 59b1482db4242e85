"""Texts tokenised piece by piece have the tokens of the whole text."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from edgekv import InputError
from edgekv.binding import text_tokenizer
from edgekv.binding.model import Model
from edgekv.documents import text_file
from edgekv.options import Options
from edgekv.prompt import text


@pytest.fixture(scope="module", params=["bpe", "spm", "default"])
def model(request, tiny_model):
    if request.param == "default":
        path = request.getfixturevalue("default_model")
    else:
        path = tiny_model(tokenizer=request.param)
    with Model(path, Options(), no_alloc=True) as model:
        yield model


def prose(n_words, seed=0):
    rng = random.Random(seed)
    vocabulary = ["the", "House", "of", "seven", "gables", "über", "naïve", "1851", "42,", "\n\n", "—", "end.", "I'll"]
    return " ".join(rng.choice(vocabulary) for _ in range(n_words))


@pytest.mark.parametrize("space_prefix", [False, True])
def test_pieces_give_the_tokens_of_the_whole(model, monkeypatch, space_prefix):
    whole = prose(800)
    expected = model.tokenize(whole, space_prefix=space_prefix)  # short enough for one chunk
    monkeypatch.setattr(text_tokenizer, "CHUNK_CHARS", 64)
    rng = random.Random(1)
    pieces, rest = [], whole
    while rest:
        n = rng.randint(1, 40)
        pieces.append(rest[:n])
        rest = rest[n:]
    for cut in (pieces, [whole], [*whole]):
        assert list(model.tokenizer.tokens(cut, space_prefix=space_prefix)) == expected


def test_text_without_gaps_is_cut_all_the_same(model, monkeypatch):
    monkeypatch.setattr(text_tokenizer, "CHUNK_CHARS", 64)
    assert "".join(model.text(model.tokenize("x" * 1000))) == "x" * 1000


@pytest.mark.parametrize("n", range(8))
def test_no_cut_is_within_the_name_of_a_control_token(model, monkeypatch, n):
    whole = "x" * n + "<|im_start|>" * 40
    expected = model.tokenize(whole, special=True)
    assert expected.count(expected[-1]) == 40
    monkeypatch.setattr(text_tokenizer, "CHUNK_CHARS", 16)
    assert model.tokenize(whole, special=True) == expected


def test_tokens_become_the_same_text_again(model):
    whole = prose(200) + " 🜁 done"
    assert "".join(model.text(model.tokenize(whole))) == whole


def test_characters_are_given_whole(model):
    pieces = list(model.text(model.tokenize("🜁🜁🜁")))
    assert "".join(pieces) == "🜁🜁🜁"
    assert all("\ufffd" not in piece for piece in pieces)


def test_the_place_of_a_byte_that_is_in_no_text_is_counted_from_the_beginning(tmp_path):
    path, place = tmp_path / "a.txt", 2 * text_file.PIECE_BYTES + 7
    path.write_bytes(b"x" * place + b"\0")
    with pytest.raises(InputError, match=f"byte {place} is 0"):
        list(text_file.read_text(path))


def test_a_prompt_that_the_vocabulary_cannot_spell_is_refused():
    """llama.cpp would abort the process when asked for logits of nothing."""
    tokenizer = SimpleNamespace(adds_space=False, tokens=lambda pieces, **options: [])
    silent = SimpleNamespace(tokenizer=tokenizer)
    with pytest.raises(InputError, match="nothing of the prompt is in the model's vocabulary"):
        text.Prompt(silent).template("<user>").content("Hello").count()
