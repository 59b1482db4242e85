"""A run of one class of characters fits the stack of a small thread, for every pre-tokenizer and by every way in."""

from __future__ import annotations

import subprocess
import sys

import pytest
from vocabularies import write_vocabulary

from edgekv.binding.model import Model
from edgekv.options import Options

# one of each kind that llama.cpp has
PRE_TOKENIZERS = (
    *("default", "llama-bpe", "jais-2", "deepseek-llm", "deepseek-coder", "deepseek-v3", "spark2_5", "youtu", "falcon"),
    *("starcoder", "gpt-2", "qwen2", "qwen35", "bloom", "viking", "tekken", "chameleon", "gpt-4o", "minimax-m2"),
    *("granite-embed-multi-97m", "tiny_aya", "kimi-k2", "superbpe", "bailingmoe", "seed-coder", "ufakzeka", "grok-2"),
    *("afmoe", "laguna", "exaone-moe", "sarvam-moe", "minicpm5"),
)
STACK_BYTES = 512 << 10

IN_A_SMALL_THREAD = """
import sys, threading
from pathlib import Path
from edgekv.binding.model import Model
from edgekv.options import Options

RUNS = (
    *("A", "a", "Ab", "1", "a1", "a b ", " ", "\\n", "\\t", "!", "$"),
    *("\\u4e00", "\\u00e9", "\\u0301", "\\U0001f701", "\\x01", "\\u00a0"),
)

def tokenize():
    with Model(Path(path), Options(), no_alloc=True) as model:
        for i, run in enumerate(RUNS):
            assert model.tokenize((run * n)[:n], special=i % 2 == 1), (path, run)

threading.stack_size(int(sys.argv[1]))
n = int(sys.argv[2])
for path in sys.argv[3:]:
    print(path, file=sys.stderr)  # the last one names what ended the process
    thread = threading.Thread(target=tokenize)
    thread.start()
    thread.join()
"""
EVERY_WAY = """
import sys
import edgekv

path, n = sys.argv[1], int(sys.argv[2])
run, hello = "A" * n, {"role": "user", "content": "Hi"}
schema = {"type": "object", "properties": {"a": {"const": run[:2000]}}}
tool = {"type": "function", "function": {"name": "f", "description": run, "parameters": schema}}
settings = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "grammars": True}
with edgekv.Runtime(path, **settings) as runtime:
    assert len(runtime.tokenize(run)) == len(runtime.tokenize(run, special=True)) == n
    for role in ("system", "user", "assistant", "tool"):
        assert runtime.count_tokens([{"role": role, "content": run}, hello]) > n
    assert runtime.count_tokens(run) == n
    assert runtime.count_tokens(edgekv.Infill(run, run)) > 2 * n
    with runtime.session(history=True) as session:
        for history, limits in (([hello], {"tools": [tool]}), ([hello], {"json_schema": schema}), (run[:100], {})):
            list(session.continue_from(history, max_tokens=2, **limits))
"""


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pre")
    return [write_vocabulary(folder / f"{pre}.gguf", pre=pre) for pre in PRE_TOKENIZERS]


def started(program, *words):
    words = [sys.executable, "-c", program, *map(str, words)]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("n", [3_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_a_run_of_every_class_fits_a_small_stack(paths, n):
    started(IN_A_SMALL_THREAD, STACK_BYTES, n, *paths)


def test_windows_change_no_tokens_of_ordinary_texts(paths):
    """Lines are words to every pre-tokenizer, and a line is shorter than a window."""
    words = [
        "the",
        "House",
        "of",
        "seven",
        "gables",
        "\u00fcber",
        "1851",
        "42,",
        "\u2014",
        "end.",
        "I'll",
        "\u53f0\u6240",
    ]
    lines = [" ".join(words[(i * k) % len(words)] for k in range(1, 12)) + "\n" for i in range(60)]
    for path in paths:
        with Model(path, Options(), no_alloc=True) as model:
            assert model.tokenize("".join(lines)) == [token for line in lines for token in model.tokenize(line)], path


def test_a_sentence_longer_than_a_window_is_cut_between_words(tmp_path):
    """A pre-tokenizer takes many words as one."""
    path = write_vocabulary(tmp_path / "model.gguf", pre="exaone-moe")
    with Model(path, Options(), no_alloc=True) as model:
        sentence = " the" * 800
        assert model.tokenize(sentence) == 800 * model.tokenize(" the")


@pytest.mark.parametrize("n", [20_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_a_run_comes_in_by_every_way(tmp_path, n):
    path = write_vocabulary(tmp_path / "model.gguf", "code", pre="tekken")
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_STACK, ({STACK_BYTES}, {STACK_BYTES}))"
    program = f"{limited}\nimport os, sys\nos.execv(sys.executable, [sys.executable, '-c', *sys.argv[1:]])"
    started(program, EVERY_WAY, path, n)
