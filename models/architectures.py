"""Table of architectures: which run, what is evicted in them, and how they are tested. People and tests read it.

It leaves out architectures with plain attention. An architecture that llama.cpp knows and the table does not counts
as one of these; `native/src/rows/memory.cpp` refuses a model that turns out to be of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Memory that llama.cpp keeps for the tokens of a text.

    evicted  the part that edgekv evicts
    fixed    the part that it leaves alone
    """

    evicted: str
    fixed: str


KINDS: Mapping[str, Kind] = {
    "plain": Kind("the rows of all layers", "nothing"),
    "hybrid": Kind("the rows of layers that attend", "the states of the others"),
    "windowed": Kind("the rows of layers that see everything", "the window of the others"),
    "shared": Kind("the rows of full layers that have their own", "the window of the others"),
    "latent": Kind("the latents of all layers", "nothing"),
    "indexed": Kind("nothing", "rows, and the index that chooses among them"),
    "recurrent": Kind("nothing", "the state"),
    "cacheless": Kind("nothing", "nothing"),
}

_TRANSFORMER = "logits, against a float64 transformer"
_MASKED = "logits, against llama.cpp with the same cells masked"
_OWN = "logits, against llama.cpp"
_REPOSITIONED = "logits of moved keys"
_REFUSAL = "the refusal"
_UNTESTED = "untested"

# Reasons for refusals.
_DRAFTS = "the context of another model, for which it drafts"
_TOKENIZER = "a tokenizer of its own"
_LATENT_HYBRID = "latents beside recurrent states"
_ALIBI = "ALiBi"
_NO_CACHE = "no KV cache"
_ENCODER = "an encoder or non-causal attention"
_OTHER = "a KV cache of another kind"

_PLAIN_MODEL = "a plain model of the size, such as a Qwen3"
_INSTEAD = {
    _DRAFTS: "the model itself",
    _TOKENIZER: _PLAIN_MODEL,
    _LATENT_HYBRID: _PLAIN_MODEL,
    _ALIBI: _PLAIN_MODEL,
    _NO_CACHE: "a model that continues texts",
    _ENCODER: "a model that continues texts",
    _OTHER: _PLAIN_MODEL,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture, by its name in a file's `general.architecture`.

    kind         one of KINDS
    repositions  kept keys can be moved, so texts can be longer than the trained context
    tested       how, on a tiny model of random weights
    refused      the reason why edgekv refuses it; "" = it runs
    """

    name: str
    kind: str = "plain"
    repositions: bool = True
    tested: str = _UNTESTED
    refused: str = ""


def _refused(reason: str, kind: str, *names: str, tested: tuple[str, ...] = ()) -> list[Architecture]:
    return [
        Architecture(name, kind, False, _REFUSAL if name in tested else _UNTESTED, reason) for name in (*names, *tested)
    ]


def _untested(kind: str, *names: str) -> list[Architecture]:
    """Return architectures without a tiny model; their keys stay where they are: in windows."""
    return [Architecture(name, kind, False) for name in names]


# One line an architecture, so that a new one changes one line. tests/kinds/ tests the families as the lines say.
ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("llama", tested=_TRANSFORMER),
    Architecture("qwen2", tested=_TRANSFORMER),
    Architecture("qwen3", tested=_TRANSFORMER),
    Architecture("gemma", tested=_TRANSFORMER),
    Architecture("deci", tested=_TRANSFORMER),
    Architecture("smollm3", tested=_MASKED),
    Architecture("phi3", tested=_MASKED),
    Architecture("glm4moe", tested=_MASKED),
    Architecture("qwen2vl", tested=_MASKED),
    Architecture("qwen3vl", tested=_MASKED),
    Architecture("minicpm3", tested=_MASKED),
    Architecture("stablelm", tested=_REPOSITIONED),
    Architecture("maincoder", repositions=False, tested=_REPOSITIONED),
    Architecture("gpt2", repositions=False, tested=_REPOSITIONED),
    Architecture("lfm2", "hybrid", tested=_MASKED),
    Architecture("granitehybrid", "hybrid", repositions=False, tested=_MASKED),
    Architecture("falcon-h1", "hybrid", tested=_MASKED),
    Architecture("qwen3next", "hybrid", tested=_MASKED),
    Architecture("jamba", "hybrid", repositions=False, tested=_MASKED),
    Architecture("nemotron_h", "hybrid", repositions=False, tested=_MASKED),
    Architecture("lfm2moe", "hybrid"),
    Architecture("nemotron_h_moe", "hybrid", repositions=False),
    Architecture("minimax-01", "hybrid"),
    Architecture("qwen35", "hybrid", tested=_MASKED),
    Architecture("qwen35moe", "hybrid"),
    Architecture("gemma2", "windowed", repositions=False, tested=_MASKED),
    Architecture("gemma3", "windowed", repositions=False, tested=_MASKED),
    Architecture("cohere2", "windowed", repositions=False, tested=_MASKED),
    Architecture("olmo2", "windowed", repositions=False, tested=_MASKED),
    Architecture("exaone4", "windowed", repositions=False, tested=_MASKED),
    Architecture("llama4", "windowed", repositions=False, tested=_MASKED),
    Architecture("gpt-oss", "windowed", repositions=False, tested=_MASKED),
    *_untested("windowed", "afmoe", "cohere2moe", "exaone-moe", "granite_swa", "laguna", "maple", "mellum", "mimo2"),
    *_untested("windowed", "muse-glimmer", "smallthinker", "spark2_5", "step35"),
    Architecture("gemma3n", "shared", repositions=False, tested=_MASKED),
    Architecture("gemma4", "shared", repositions=False, tested=_MASKED),
    Architecture("deepseek2", "latent", tested=_MASKED),
    Architecture("mistral4", "latent"),
    Architecture("mamba2", "recurrent", tested=_OWN),
    *(Architecture(name, "recurrent") for name in ("mamba", "rwkv6qwen2", "arwkv7")),
    Architecture("hunyuan_vl", repositions=False),
    *(Architecture(name) for name in ("paddleocr", "qwen3tts", "qwen3vlmoe")),
    *_refused(_TOKENIZER, "recurrent", "rwkv6", "rwkv7"),
    *_refused(_TOKENIZER, "hybrid", "plamo2"),
    *_refused(_TOKENIZER, "windowed", "plamo3"),
    *_refused(_DRAFTS, "shared", "gemma4-assistant"),
    *_refused(_LATENT_HYBRID, "hybrid", "bailingmoe3", "kimi-linear", "kimi-k3"),
    *_refused(_OTHER, "indexed", "deepseek32", "deepseek4", "dots3note", "glm-dsa", "glm5-next", "hy_v4"),
    *_refused(_OTHER, "indexed", "minimax-m3", "qwen4exp"),
    *_refused(_ALIBI, "plain", "jais", "mpt", "refact", tested=("bloom",)),
    *_refused(_NO_CACHE, "cacheless", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada"),
    *_refused(_NO_CACHE, "cacheless", "llada-moe", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1"),
    *_refused(_NO_CACHE, "cacheless", "wavtokenizer-dec", tested=("bert",)),
    *_refused(_ENCODER, "cacheless", "dflash", "eagle3", "t5", "t5encoder"),
)

_OTHERS = "any other that llama.cpp knows"

_BY_NAME = {architecture.name: architecture for architecture in ARCHITECTURES}


def find_architecture(name: str) -> Architecture:
    """Return the line of an architecture; for a name that has none, a line of plain attention, untested."""
    return _BY_NAME.get(name, Architecture(name))


def running_table() -> list[tuple[str, ...]]:
    """Return a heading, and a row for all architectures that run alike and are tested alike."""
    rows: list[tuple[str, ...]] = [("architectures", "kind", "evicted", "fixed", "repositioning", "tested")]
    running = [it for it in ARCHITECTURES if not it.refused]
    alike = dict.fromkeys((it.kind, it.repositions, it.tested) for it in running)
    for kind, moves, tested in sorted(alike, key=lambda group: list(KINDS).index(group[0])):
        names = ", ".join(it.name for it in running if (it.kind, it.repositions, it.tested) == (kind, moves, tested))
        rows.append((names, kind, KINDS[kind].evicted, KINDS[kind].fixed, "yes" if moves else "no", tested))
    plain = KINDS["plain"]
    return [*rows, (_OTHERS, "plain", plain.evicted, plain.fixed, "?", _UNTESTED)]


def refused_table() -> list[tuple[str, ...]]:
    """Return a heading, and a row for each reason and kind that are refused."""
    rows: list[tuple[str, ...]] = [("refused for", "kind", "architectures", "instead")]
    refused = [it for it in ARCHITECTURES if it.refused]
    for reason, kind in dict.fromkeys((it.refused, it.kind) for it in refused):
        names = sorted(it.name for it in refused if (it.refused, it.kind) == (reason, kind))
        rows.append((reason, kind, ", ".join(names), _INSTEAD[reason]))
    return rows
