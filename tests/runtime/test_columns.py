"""A token's logits are to the bit what they are alone, whatever is decoded beside it: in blocks of any length."""

from __future__ import annotations

import numpy as np
import pytest
from small import SETTINGS, words

import edgekv
from edgekv.generation.sampler import GREEDY
from edgekv.options import KV_TYPES
from edgekv.testing.models.families import make_family

LENGTHS = (2, 4, 8, 32, 64, 128)  # a longer block is decoded in pieces of 128
N_TOKENS = 330
HELD = SETTINGS | {"budget": 1024, "block": 512}


def logits_by(path, lengths, **options):
    """Return the logits (n_vocab,) of a text's last token for each of the lengths: so many tokens are fed at a time."""
    with edgekv.Runtime(path, **HELD | options) as rt:
        loop, found = rt.block_loop, []
        tokens = np.arange(N_TOKENS) * 1009 % 251 + 3
        for length in lengths:
            loop.clear()
            for first in range(0, N_TOKENS, length):
                loop.cache.feed(tokens[first : first + length].tolist(), want_logits=first + length >= N_TOKENS)
            found.append(rt.context.logits_array().copy())
        return found


@pytest.mark.each_by_day("quantization", "kv_type")
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("quantization", ["Q4_0", "Q8_0", "F16", "F32"])
def test_logits_are_those_of_single_tokens_in_blocks_of_any_length(tiny_model, quantization, kv_type):
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization=quantization)
    alone, *blocks = logits_by(path, (1, *LENGTHS), kv_type=kv_type)
    for length, found in zip(LENGTHS, blocks, strict=True):
        np.testing.assert_array_equal(found, alone, err_msg=f"blocks of {length}")


@pytest.mark.parametrize("quantization", ["Q4_0", "F32"])
def test_logits_of_experts_are_those_of_single_tokens(tmp_path, quantization):
    path = make_family(tmp_path / "experts.gguf", "glm4moe", quantization=quantization)
    alone, *blocks = logits_by(path, (1, 8, 64))
    for found in blocks:
        np.testing.assert_array_equal(found, alone)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("quantization", ["Q4_0", "F16"])
def test_a_greedy_reply_is_the_same_with_blocks_of_any_length(tiny_model, quantization):
    path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, quantization=quantization)

    def reply(block):
        options = {"block": block, "kv_type": "q8_0", "prompt_lookup": "off"}  # else the last logits may be a draft's
        with edgekv.Runtime(path, **HELD | options) as rt, rt.session() as session:
            session.read(words(120))
            said = "".join(session.chat("Which words?", max_tokens=40, sampling=GREEDY))
            assert session.stats.evictions == 0
            return said, rt.context.logits_array().copy()

    said, logits = reply(512)
    for block in (32, 64, 128):
        ours, found = reply(block)
        assert ours == said
        np.testing.assert_array_equal(found, logits)
