"""Options of other programs: the error says which option of edgekv does the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# by the option of edgekv, what to write, and the options of llama.cpp, ollama, llm and others
_MEANT = {
    "--memory": (
        "write --memory SIZE; a text of any length fits",
        ("-c", "--ctx-size", "--n-ctx", "--num-ctx", "--max-model-len", "--context-length"),
    ),
    "--max-tokens": ("write --max-tokens N", ("-n", "--n-predict", "--predict", "--num-predict", "--max-new-tokens")),
    "--gpu-layers": ("write --gpu-layers N", ("-ngl", "--n-gpu-layers", "--num-gpu")),
    "--temp": ("write --temp NUMBER", ("--temperature",)),
    "--system": ("write --system TEXT", ("-sys", "--system-prompt")),
    "--kv-type": ("write --kv-type TYPE", ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v")),
    "--block": ("write --block N", ("-b", "-ub", "--batch-size", "--ubatch-size")),
    "--model": ("write -m hf:OWNER/MODEL:QUANT", ("--hf-repo",)),
    "--file": ("write the text itself, in quotes", ("-p", "--prompt")),
}
_ELSEWHERE = {name: option for option, (_, names) in _MEANT.items() for name in names}


def what_to_write(words: Sequence[str], known: Iterable[str]) -> tuple[str, str] | None:
    """Return the first word that is an option of another program, and what to write; None = there is none.

    known: the options of the command
    """
    possible = {*known}
    for word in words:
        name = word.partition("=")[0]
        if name not in possible and _ELSEWHERE.get(name) in possible:
            return name, _MEANT[_ELSEWHERE[name]][0]
    return None
