"""Models in the caches of other programs: found by name, used where they lie, and removed only where that is right."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from edgekv.errors import AmbiguousModelError, ConfigError, ModelNotFoundError
from edgekv.models import find_model
from edgekv.models.caches import find_cached, found_models, hugging_face

OLDER, NEWER = "a" * 40, "b" * 40


def put(path, data=b"GGUF"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def hf(home):
    """Puts a file into the cache of Hugging Face, as huggingface_hub does; returns its path in the snapshot."""

    def put_file(repo, commit, name, data=b"GGUF", main=True):
        folder = home / "hf" / "hub" / ("models--" + repo.replace("/", "--"))
        blob = put(folder / "blobs" / data.hex(), data)
        path = folder / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(blob)
        if main:
            put(folder / "refs" / "main", commit.encode())
        return path

    return put_file


@pytest.fixture
def ollama(home):
    """Puts a model into the folder of ollama; returns its blob."""

    def put_model(*parts, data=b"GGUF", kinds=("model", "template", "params")):
        folder = home / ".ollama" / "models"
        layers = [
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{i}{data.hex()}", "size": 4}
            for i, kind in enumerate(kinds)
        ]
        put(folder.joinpath("manifests", *parts), json.dumps({"schemaVersion": 2, "layers": layers}).encode())
        return put(folder / "blobs" / f"sha256-0{data.hex()}", data)

    return put_model


@pytest.fixture
def lm_studio(home):
    return lambda name, data=b"GGUF": put(home / ".lmstudio" / "models" / name, data)


def names():
    return [model.name for model in found_models()]


def test_without_caches_nothing_is_found():
    assert found_models() == []
    assert find_cached("o/m:Q8_0") is None


# ---- Hugging Face ----


@pytest.mark.parametrize("name", ["hf:o/m:Q8_0", "o/m:q8_0", "O/M", "hf:o/m", "o/m:m-Q8_0.gguf"])
def test_a_file_of_hugging_face_has_these_names(hf, name):
    path = hf("o/m", NEWER, "m-Q8_0.gguf")
    assert find_model(name) == path
    assert names() == ["hf:o/m:Q8_0"]


def test_the_commit_that_is_called_main_is_taken(hf):
    hf("o/m", OLDER, "m-Q8_0.gguf", b"older")
    newest = hf("o/m", NEWER, "m-Q8_0.gguf", b"newer")
    hf("o/m", OLDER, "m-F16.gguf", b"only older", main=False)
    assert find_model("o/m:q8_0") == newest
    assert names() == ["hf:o/m:Q8_0", "hf:o/m:F16"]


def test_what_is_no_whole_model_is_not_listed(hf, home):
    hf("o/m", NEWER, "mmproj-F16.gguf")
    hf("o/m", NEWER, "config.json")
    hf("o/m", NEWER, "m-F16-00002-of-00002.gguf")
    hf("o/m", NEWER, "m-Q8_0.gguf").resolve().unlink()  # a link that leads nowhere
    put(home / "hf" / "hub" / "models--o--m" / "blobs" / "00.incomplete")
    put(home / "hf" / "hub" / "datasets--o--d" / "snapshots" / NEWER / "d.gguf")
    assert names() == []


@pytest.mark.parametrize(
    ("variable", "below"),
    [("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")],
)
def test_the_cache_is_where_the_environment_says(home, monkeypatch, variable, below):
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, "~/elsewhere")
    assert hugging_face.cache_folder() == home / "elsewhere" / below


def test_the_cache_is_where_huggingface_hub_has_it(home, monkeypatch):
    pytest.importorskip("huggingface_hub")
    import subprocess

    script = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    for variables in ({}, {"HF_HOME": ""}, {"HF_HUB_CACHE": "$HOME/x"}, {"HF_HOME": "", "XDG_CACHE_HOME": "~/y"}):
        with monkeypatch.context() as patch:
            for variable, value in variables.items():
                patch.setenv(variable, value) if value else patch.delenv(variable)
            told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
            assert str(hugging_face.cache_folder()) == told.strip()


# ---- ollama ----


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("models.ollama.ai", "library", "llama3.2", "1b"), "ollama:llama3.2:1b"),
        (("models.ollama.ai", "someone", "tiny", "latest"), "ollama:someone/tiny:latest"),
        (("hub.example", "o", "m-GGUF", "Q8_0"), "ollama:hub.example/o/m-GGUF:Q8_0"),
    ],
)
def test_a_model_of_ollama(ollama, parts, name):
    blob = ollama(*parts)
    assert names() == [name]
    assert find_model(name) == find_model(name.removeprefix("ollama:")) == blob


def test_the_latest_is_meant_where_no_tag_is_given(ollama):
    ollama("models.ollama.ai", "library", "tiny", "1b", data=b"1b")
    blob = ollama("models.ollama.ai", "library", "tiny", "latest", data=b"latest")
    assert find_model("tiny") == blob
    assert find_model("tiny:1b") != blob


def test_two_tags_of_one_blob_are_one_model(ollama):
    blob = ollama("models.ollama.ai", "library", "tiny", "1b")
    ollama("models.ollama.ai", "library", "tiny", "1b-instruct")
    assert find_model("tiny") == blob


def test_what_ollama_puts_together_is_not_listed(ollama, home):
    ollama("models.ollama.ai", "library", "tuned", "latest", kinds=("model", "adapter"))
    ollama("models.ollama.ai", "library", "split", "latest", kinds=("model", "model"))
    ollama("models.ollama.ai", "library", "cloud", "latest", kinds=("params",))
    manifests = home / ".ollama" / "models" / "manifests" / "models.ollama.ai" / "library" / "odd"
    put(manifests / "text", b"no JSON")
    put(manifests / "list", b"[]")
    put(manifests / "deep", b"[" * 100_000)
    put(manifests / "gone", b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:ff"}]}')
    assert names() == []


def test_ollamas_folder_has_a_variable(ollama, home, monkeypatch):
    ollama("models.ollama.ai", "library", "tiny", "1b")
    shutil.move(home / ".ollama" / "models", home / "elsewhere")
    assert names() == []
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert names() == ["ollama:tiny:1b"]


# ---- LM Studio ----


def test_a_model_of_lm_studio(lm_studio, home):
    path = lm_studio("o/m-GGUF/m-Q8_0.gguf")
    lm_studio("o/m-GGUF/mmproj-m-f16.gguf")
    older = put(home / ".cache" / "lm-studio" / "models" / "o" / "n" / "n.gguf")
    assert names() == ["lmstudio:o/m-GGUF:Q8_0", "lmstudio:o/n:n.gguf"]
    assert find_model("o/m-gguf") == find_model("lmstudio:o/m-GGUF:q8_0") == path
    assert find_model("o/n") == older


# ---- names ----


def test_a_name_of_several_models_lists_them(hf, lm_studio):
    hf("o/m", NEWER, "m-Q8_0.gguf", b"8")
    hf("o/m", NEWER, "m-F16.gguf", b"16")
    lm_studio("o/m/m-Q8_0.gguf")
    with pytest.raises(
        AmbiguousModelError, match="'o/m' is several models; name one: hf:o/m:F16, hf:o/m:Q8_0, lmstudio:o/m:Q8_0"
    ):
        find_model("o/m")
    with pytest.raises(AmbiguousModelError, match="name one: hf:o/m:Q8_0, lmstudio:o/m:Q8_0"):
        find_model("o/m:Q8_0")
    assert find_model("o/m:f16").read_bytes() == b"16"
    assert find_model("lmstudio:o/m") != find_model("hf:o/m:q8_0")


def test_a_path_is_a_path(hf, tmp_path, monkeypatch):
    hf("o/m", NEWER, "m-Q8_0.gguf")
    monkeypatch.chdir(tmp_path)
    mine = put(tmp_path / "o" / "m")
    assert find_model("o/m").resolve() == mine


def test_a_name_that_is_not_here_says_how_to_get_it():
    with pytest.raises(ModelNotFoundError, match="is not on this machine; download it with: edgekv pull o/m:Q8_0"):
        find_model("hf:o/m:Q8_0")
    with pytest.raises(ModelNotFoundError, match="'edgekv models list', or download one with: edgekv pull"):
        find_model("o/m:Q8_0")


def test_finding_needs_no_package_of_other_programs(hf):
    import subprocess

    hf("o/m", NEWER, "m-Q8_0.gguf")
    script = (
        "import sys; from edgekv.models import find_model; find_model('o/m'); "
        "print({'huggingface_hub', 'httpx2', 'edgekv.hub'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


# ---- removing ----


def test_the_last_file_goes_with_its_repository(hf, home):
    path = hf("o/m", NEWER, "sub/m-Q8_0.gguf")
    other = hf("o/other", NEWER, "m-Q8_0.gguf")
    assert hugging_face.remove(find_cached("o/m")) == 4
    assert not (home / "hf" / "hub" / "models--o--m").exists()
    assert not path.exists()
    assert other.exists()


def test_others_of_the_repository_stay(hf):
    path = hf("o/m", NEWER, "m-Q8_0.gguf", b"8")
    older = hf("o/m", OLDER, "m-Q8_0.gguf", b"8", main=False)
    other = hf("o/m", NEWER, "m-F16.gguf", b"16")
    config = hf("o/m", NEWER, "config.json", b"{}")
    blob = path.resolve()
    hugging_face.remove(find_cached("o/m:q8_0"))
    assert not path.is_symlink()
    assert not older.is_symlink()
    assert not older.parent.exists()
    assert not blob.exists()
    assert other.read_bytes() == b"16"
    assert config.read_bytes() == b"{}"


def test_where_there_are_no_links(home):
    path = put(home / "hf" / "hub" / "models--o--m" / "snapshots" / NEWER / "m-Q8_0.gguf")
    assert hugging_face.remove(find_cached("o/m")) == 4
    assert not path.exists()


def test_a_store_that_repositories_share_is_left_alone(hf, home):
    path = hf("o/m", NEWER, "m-Q8_0.gguf")
    blob = path.resolve()
    shared = home / "hf" / "hub" / "blobs" / "ab" / "abcd"
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(shared)
    with pytest.raises(ConfigError, match="lies in a store that repositories share; remove it with: hf cache rm"):
        hugging_face.remove(find_cached("o/m"))
    assert path.exists()
