"""`edgekv models --suggest`: models that nobody downloaded, planned by their dimensions."""

from __future__ import annotations

import json
import math
import re
import tempfile

import pytest
from command import run_here
from diagonals import by_night

import edgekv
from edgekv.cli import suggest
from edgekv.cli.suggest import Suggestion
from edgekv.models import read_header
from edgekv.models.outline import write_outline
from edgekv.models.suggested import SUGGESTED, SuggestedModel, Tokenizer

MIB = 1 << 20

# bytes of files on the hub, which have a chat template besides
FILES = {
    "Qwen3-0.6B-Q8_0.gguf": 639_446_688,
    "Qwen3-1.7B-Q8_0.gguf": 1_834_426_016,
    "Qwen3-4B-Q4_K_M.gguf": 2_497_280_256,
}


@pytest.mark.parametrize("model", by_night(SUGGESTED, [SUGGESTED[0], SUGGESTED[-1]]), ids=lambda it: it.name)
def test_an_outline_is_a_model_of_these_dimensions(model, tmp_path):
    write_outline(tmp_path / "outline.gguf", model)
    header = read_header(tmp_path / "outline.gguf")
    dimensions = header.n_layer, header.n_embd, header.n_head, header.n_head_kv, header.head_dim
    assert dimensions == (model.n_layer, model.n_embd, model.n_head, model.n_head_kv, model.head_dim)
    assert (header.n_ctx_train, header.vocab_size) == (model.n_ctx_train, model.tokenizer.n_tokens)
    n_values = sum(math.prod(tensor.shape) for tensor in header.tensors)
    if model.tied:
        assert n_values == pytest.approx(1e6 * model.parameters, rel=0.02)
    if model.file_name in FILES:
        assert 0 < FILES[model.file_name] - header.file_bytes < 64 << 10


def test_the_plan_of_an_outline_is_that_of_the_model(default_model, tmp_path):
    """The default model's, whose matrices are of another type."""
    dimensions = 30, 576, 1_536, 9, 3, 64, 8_192, Tokenizer("smollm", 49_152, 48_900), 1e5
    write_outline(
        tmp_path / "outline.gguf", SuggestedModel("SmolLM2", 135, "Q8_0", "", "", "outline.gguf", "llama", *dimensions)
    )
    options = {"memory": "1GiB", "budget": 1024, "block": 128, "kv_type": "f16", "repack": False, "policy": "keydiff"}
    outline, real = (edgekv.plan(path, **options) for path in (tmp_path / "outline.gguf", default_model))
    for part in ("kv", "compute", "workspace", "outputs", "bookkeeping"):
        assert getattr(outline.parts, part) == getattr(real.parts, part), part
    assert abs(outline.parts.vocabulary - real.parts.vocabulary) <= 4 * MIB


def suggestion(name, parameters, cells, resident=1.0):
    command = f"edgekv pull {name}"
    return Suggestion(name, name, parameters, "Q8_0", "MIT", 1, 8192, cells, resident, "f16", 3 * MIB, command)


def test_the_largest_model_with_enough_cells_comes_first(monkeypatch):
    unsorted = [
        *(suggestion("small", 100, 8000), suggestion("absent", 9000, None), suggestion("cramped", 3000, 100)),
        *(suggestion("large", 1700, 512), suggestion("narrow", 4000, 200), suggestion("read", 3000, 600, 0.75)),
        *(suggestion("waiting", 7000, 2048, 0.5), suggestion("slower", 8000, 2048, 0.1)),
    ]
    monkeypatch.setattr(suggest, "_suggestions", lambda ceiling: iter(unsorted))
    found = json.loads(run_here("models", "--suggest", "--memory", "1GiB", "--json").stdout)["models"]
    names = ["read", "large", "small", "narrow", "cramped", "waiting", "slower"]
    assert [it["name"] for it in found] == [*names, "absent"]
    table = run_here("models", "--suggest", "--memory", "1GiB").stdout
    assert table.startswith("under 1024.0 MiB, best first:")
    assert "large 1.7B Q8_0" in table
    assert "needs 3 MiB" in table
    assert re.search(r"waiting 7.0B Q8_0 .* 50%", table)
    assert table.endswith("".join(f"edgekv pull {name}\n" for name in names))


def test_each_model_is_planned_by_its_dimensions(monkeypatch, tmp_path):
    monkeypatch.setattr(suggest, "SUGGESTED", [SUGGESTED[0], SUGGESTED[-1]])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = json.loads(run_here("models", "--suggest", "--memory", "1500MiB", "--json").stdout)
    assert found["ceiling_bytes"] == 1500 * MIB
    fits, larger = (it for it in found["models"] if it["command"] != "edgekv chat")  # the bundled model has no pull
    assert (fits["command"], larger["name"]) == (f"edgekv pull {SUGGESTED[0].name}", SUGGESTED[-1].name)
    assert (fits["cells"] > 512, fits["resident"]) == (True, 1)
    assert (larger["cells"] > 512, 0 < larger["resident"] < 0.75) == (True, True)  # the others are read from the file
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_model_of_which_some_layers_are_read_from_the_file_may_be_the_best(monkeypatch, tmp_path):
    """With all weights in memory it has too few cells."""
    model = next(model for model in SUGGESTED if model.parameters == 1_540)
    monkeypatch.setattr(suggest, "SUGGESTED", [SUGGESTED[0], model])
    write_outline(tmp_path / "outline.gguf", model)
    whole = edgekv.plan(tmp_path / "outline.gguf", memory="8GiB", resident=1, budget=256, kv_type="q8_0", block=32)
    memory = f"{whole.peak_bytes // MIB}MiB"
    found = json.loads(run_here("models", "--suggest", "--memory", memory, "--json").stdout)["models"]
    assert found[0]["name"] == model.name
    assert 0.75 <= found[0]["resident"] < 1


def test_a_ceiling_without_suggestions_is_refused():
    refused = run_here("models", "--memory", "1GiB")
    assert (refused.returncode, "add --suggest" in refused.stderr) == (2, True)
