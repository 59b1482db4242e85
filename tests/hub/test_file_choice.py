"""The choice of a repository's file by a name."""

from __future__ import annotations

import pytest

from edgekv.errors import AmbiguousModelError, ModelNotFoundError, UnsupportedModelError
from edgekv.hub.hub_file import HubFile, choose
from edgekv.models.names import ModelName, quant_of, split_of, tags_of

MIB = 1 << 20


def named(*names, mib=10):
    return [HubFile("o/m", "0" * 40, name, (mib + i) * MIB, "0" * 64) for i, name in enumerate(names)]


def chosen(found, tag=None, ceiling=256 * MIB):
    return choose(found, "o/m", tag, ceiling).path


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Llama-3.2-1B-Instruct-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Qwen3-4B-IQ4_XS.gguf", "IQ4_XS"),
        ("BF16/Qwen3-4B-BF16-00001-of-00002.gguf", "BF16"),
        ("gemma-3-1b-it-f16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model.i1-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("Q8_0.gguf", "Q8_0"),
        ("Qwen3-4B.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_quantisation_in_a_file_name(name, quant):
    assert quant_of(name) == quant


def test_parts_of_split_models():
    assert split_of("sub/model-Q8_0-00002-of-00003.gguf") == (2, 3)
    assert split_of("model-Q8_0.gguf") == (1, 1)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf:o/m:Q8_0", ("hf", "o/m", "Q8_0")),
        ("o/m:Q8_0", (None, "o/m", "Q8_0")),
        ("o/m", (None, "o/m", None)),
        ("llama3.2:1b", (None, "llama3.2", "1b")),
        ("ollama:llama3.2", ("ollama", "llama3.2", None)),
        ("ollama", (None, "ollama", None)),
        ("hf:o/m:sub/file.gguf", ("hf", "o/m", "sub/file.gguf")),
    ],
)
def test_names(text, parts):
    name = ModelName.parse(text)
    assert (name.source, name.repo, name.tag) == parts


def test_tags_are_quantisations_where_these_are_unique():
    assert tags_of(["a-Q8_0.gguf", "a-f16.gguf", "b-f16.gguf", "c.gguf"]) == {
        "a-Q8_0.gguf": "Q8_0",
        "a-f16.gguf": "a-f16.gguf",
        "b-f16.gguf": "b-f16.gguf",
        "c.gguf": "c.gguf",
    }


def test_a_tag_is_found_in_any_case():
    found = named("m-Q4_K_M.gguf", "m-Q8_0.gguf", "sub/m-F16.gguf")
    assert chosen(found, "q8_0") == "m-Q8_0.gguf"
    assert chosen(found, "M-f16.GGUF") == chosen(found, "sub/m-f16.gguf") == "sub/m-F16.gguf"


def test_the_default_is_q4_k_m():
    assert chosen(named("m-Q2_K.gguf", "m-q4_k_m.gguf", "m-Q8_0.gguf")) == "m-q4_k_m.gguf"


def test_without_it_the_largest_file_below_the_ceiling():
    found = named("m-Q2_K.gguf", "m-Q5_0.gguf", "m-Q8_0.gguf", mib=100)
    assert chosen(found, ceiling=102 * MIB) == "m-Q5_0.gguf"
    assert chosen(found, ceiling=1 << 40) == "m-Q8_0.gguf"


def test_and_else_the_smallest():
    assert chosen(named("m-Q8_0.gguf", "m-F16.gguf", mib=100), ceiling=MIB) == "m-Q8_0.gguf"


def test_one_file_needs_no_quantisation_in_its_name():
    assert chosen(named("model.gguf", "mmproj-F16.gguf")) == "model.gguf"


def test_an_unknown_tag_lists_what_is_there():
    with pytest.raises(ModelNotFoundError, match=r"has no 'Q3_K'; there are: Q4_0 \(10.0 MiB\), Q8_0 \(11.0 MiB\)$"):
        chosen(named("m-Q4_0.gguf", "m-Q8_0.gguf"), "Q3_K")


def test_a_repository_without_models():
    with pytest.raises(ModelNotFoundError, match="'o/m' has no GGUF model"):
        chosen(named("model.safetensors", "mmproj-F16.gguf"))


def test_two_files_of_one_quantisation():
    with pytest.raises(AmbiguousModelError, match=r"name one: o/m:a-Q8_0.gguf, o/m:b-Q8_0.gguf"):
        chosen(named("a-Q8_0.gguf", "b-Q8_0.gguf"), "q8_0")


def test_split_models_are_refused_by_name():
    parts = named("m-F16-00001-of-00002.gguf", "m-F16-00002-of-00002.gguf")
    with pytest.raises(
        UnsupportedModelError, match="split into 2 files, but edgekv reads one; choose a smaller model, or"
    ):
        chosen(parts)
    found = [*parts, *named("m-Q8_0.gguf", mib=20)]
    with pytest.raises(UnsupportedModelError, match=r"choose another: Q8_0 \(20.0 MiB\), or download .*--merge"):
        chosen(found, "f16")
    assert chosen(found) == "m-Q8_0.gguf"
