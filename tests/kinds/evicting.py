"""Heads of the tiny models whose rows are evicted, and the families that run."""

from __future__ import annotations

import pytest

from edgekv.models.architectures import find_architecture
from edgekv.testing.models.families import FAMILIES

# KV heads of each layer whose rows are evicted, by llama.cpp's number of the layer. Rows of other layers are in a
# window, or nobody reads them (the last layer of glm4moe).
HEADS = {
    "lfm2": {2: 2, 4: 2},
    "lfm2-windows": {},
    "gemma3": {5: 2},
    "granitehybrid": {2: 2, 5: 2},
    "gemma2": {1: 2, 3: 2},
    "mamba2": {},
    "gpt-oss": {1: 2, 3: 2},
    "falcon-h1": {0: 2, 1: 2, 2: 2},
    "qwen3next": {3: 2, 7: 2},
    "qwen35": {3: 2, 7: 2},
    "cohere2": {3: 2},
    "olmo2": {3: 2},
    "exaone4": dict.fromkeys(range(3, 64, 4), 1),
    "llama4": {3: 2},
    "phi3": {0: 2, 1: 2, 2: 2},
    "smollm3": {0: 2, 1: 2, 2: 2, 3: 2},
    "jamba": {2: 2},
    "nemotron_h": {3: 2, 6: 2},
    "gemma3n": {4: 1, 9: 1, 14: 1, 19: 1},
    "gemma4": {0: 2, 2: 2},
    "deepseek2": {0: 1, 1: 1, 2: 1},
    "glm-4.7-flash": {0: 1, 1: 1, 2: 1},
    "deepseek2-decompressed": {0: 4, 1: 4, 2: 4},
    "minicpm3": {0: 3, 1: 3, 2: 3},
    "glm4moe": {0: 2, 1: 2, 2: 2, 3: 2},
    "qwen2vl": {0: 2, 1: 2, 2: 2},
    "qwen3vl": {0: 2, 1: 2, 2: 2},
}


def architecture_of(name):
    """The line of a family's architecture in the table."""
    return find_architecture(FAMILIES[name]().architecture)


RUN = [name for name in FAMILIES if not architecture_of(name).refused]

# Many layers of the kinds that others have with few; llama.cpp knows these models by the number.
DEEP = ("exaone4", "gemma3n")
SHALLOW = [name for name in RUN if name not in DEEP]

# One family of each kind of state that a session has: rows of every layer; rows beside windows, with sinks, in chunks,
# or read by later layers; latents; recurrent states alone, beside rows, beside windows, and in one layer with rows.
# Other families differ in what llama.cpp computes with these. At night test_exact.py compares that with every family,
# and test_saved_kinds.py saves the state of each.
OF_EACH_STATE = ("phi3", "gemma3", "gpt-oss", "llama4", "gemma4", "deepseek2", "deepseek2-decompressed")
OF_EACH_STATE += ("mamba2", "lfm2", "lfm2-windows", "granitehybrid", "qwen3next", "falcon-h1")
# Those, and families whose scores have a cap, and whose keys turn in part or in sections: what edgekv branches on.
OF_EACH_KIND = (*OF_EACH_STATE, "gemma2", "glm4moe", "minicpm3", "qwen2vl")


def by_turns(k):
    """Families of which the day has every third kind of state, from the k-th on.

    Each test of sessions takes another k. An eviction, a recall and a save are tested with each kind by day.
    """
    return [name if name in OF_EACH_STATE[k::3] else pytest.param(name, marks=pytest.mark.nightly) for name in RUN]


def heads_of(name):
    """As recorded_runtime takes them."""
    return {"n_layer": len(HEADS[name]), "n_head_kv": tuple(HEADS[name].values())}


def by_layer(name, visible):
    """visible of a Recording, as AttentionNodes takes it: by llama.cpp's number of the layer."""
    return {il: visible[i, :n] for i, (il, n) in enumerate(HEADS[name].items())}
