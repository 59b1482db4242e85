"""find_model turns names and paths into files."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from edgekv.errors import InvalidModelError, ModelNotFoundError
from edgekv.models import KnownModel, catalog, find_model, known_models

PACKAGE = "edgekv_test_model_package"
MODEL = KnownModel(
    name="test-model",
    file_name="test.gguf",
    file_bytes=3,
    sha256="",
    licence="MIT",
    n_ctx_train=8,
    package=PACKAGE,
    requirement="test==1",
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package that cannot be imported, and whose model is the default."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "_KNOWN_MODELS", (MODEL, dataclasses.replace(MODEL, name="b", package="no_package")))
    return folder


def test_the_default_is_smollm2() -> None:
    model = known_models()[0]
    assert model.name == "smollm2-135m-instruct"
    assert (model.licence, model.n_ctx_train, len(model.sha256)) == ("Apache-2.0", 8192, 64)


def test_names_are_unique() -> None:
    names = [model.name for model in known_models()]
    assert len(set(names)) == len(names)


def test_a_known_model_is_found_without_importing_its_package(package: Path) -> None:
    (package / "test.gguf").write_bytes(b"abc")
    assert MODEL.is_installed
    assert find_model() == find_model("test-model") == package / "test.gguf"
    assert PACKAGE not in sys.modules


def test_a_package_without_its_file(package: Path) -> None:
    assert not MODEL.is_installed
    with pytest.raises(ModelNotFoundError, match=r"'test-model' is not on this machine.*edgekv pull test-model"):
        find_model()


def test_a_missing_package(package: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"edgekv pull b,"):
        find_model("b")


def test_a_known_file_of_another_size(package: Path) -> None:
    (package / "test.gguf").write_bytes(b"ab")
    with pytest.raises(InvalidModelError, match=r"has 2 bytes, .* has 3; .*edgekv pull test-model"):
        find_model("test-model")


def test_a_path(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"")
    assert find_model(path) == find_model(str(path)) == path


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError, match=r"'smollm3'.*known: smollm2-135m-instruct"):
        find_model("smollm3")
