"""Packages: the source package, the files of an install, and the wheel in a fresh environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from wheel_environment import CHECKOUT, build_source_package, run

from edgekv.binding import library

NAMES = "import importlib.metadata as m; print(*{f.parts[0] for f in m.files('edgekv')})"
ASSETS = """import edgekv.server, importlib.resources as r
print(*(f.name for f in r.files('edgekv.server').joinpath('page/assets').iterdir()))"""
LIBRARY = "from edgekv.binding import library; print(library.load()._name)"


# what C programs need, and what llama.cpp's licence asks for
CARRIED = {
    *(f"include/{name}.h" for name in ("edgekv", "llama", "gguf", "ggml")),
    *(f"include/ggml-{name}.h" for name in ("alloc", "backend", "cpu", "opt")),
    "cmake/edgekvConfig.cmake",
    "cmake/edgekvConfigVersion.cmake",
    "pkgconfig/edgekv.pc",
    "LICENSE.llama.cpp",
}


PACKAGED = ("edgekv", "models", "cli", "evals", "server", "native")
ABSOLUTE = re.compile(rb'[ "=](?:/\w|[A-Z]:)')


@pytest.mark.nightly
def test_the_source_package_carries_what_a_build_reads(tmp_path):
    with tarfile.open(build_source_package(tmp_path)) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    tracked = ["git", "ls-files", *PACKAGED, "pyproject.toml", "README.md", "LICENSE"]
    read = subprocess.run(tracked, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    if read.returncode != 0:
        pytest.skip("the checkout is not git's")
    assert {name for name in read.stdout.splitlines() if (CHECKOUT / name).exists()} <= names


@pytest.mark.skipif("EDGEKV_LIB_PATH" in os.environ, reason="another library than that of the install")
def test_the_install_brings_what_c_programs_need():
    folder = library.library_path().parent
    for name in CARRIED:
        content = (folder / name).read_bytes()
        assert str(CHECKOUT).encode() not in content, name
        assert not (name.endswith((".cmake", ".pc")) and ABSOLUTE.search(content)), name


@pytest.mark.nightly  # the two above find what a package lacks
def test_the_wheel_carries_what_c_programs_need_and_no_absolute_path(wheel):
    assert wheel.name.startswith("edgekv-")
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        names = set(files.namelist())
        assert {f"edgekv/_lib/{name}" for name in CARRIED} <= names
        assert any(name.endswith("/licenses/LICENSE") for name in names)
        for name in names:
            content = files.read(name)
            assert str(CHECKOUT).encode() not in content, name
            assert not (name.endswith((".cmake", ".pc")) and ABSOLUTE.search(content)), name


@pytest.mark.nightly  # compiles llama.cpp in a folder of its own
def test_the_wheel_works_without_the_checkout(environment, tmp_path):
    python, edgekv = environment / "bin" / "python", environment / "bin" / "edgekv"
    names = set(run(python, "-c", NAMES, folder=tmp_path).split())
    assert {name for name in names if name != ".." and not name.endswith(".dist-info")} == {"edgekv"}
    assert Path(run(python, "-c", LIBRARY, folder=tmp_path).strip()).is_relative_to(environment)
    assets = {path.name for path in (CHECKOUT / "edgekv" / "server" / "page" / "assets").iterdir()}
    assert set(run(python, "-c", ASSETS, folder=tmp_path).split()) == assets
    listed = json.loads(run(edgekv, "models", "--json", folder=tmp_path))
    (model,) = (model for model in listed if model["source"] == "package")  # the machine may have others
    plan = json.loads(run(edgekv, "plan", "--json", folder=tmp_path))
    assert Path(plan["model"]).is_relative_to(environment)
    assert plan["planned_peak_bytes"] <= 256 << 20
    assert model["name"] == "smollm2-135m-instruct"
    answer = json.loads(
        run(edgekv, "ask", "Hi", "--max-tokens", 4, "--json", folder=tmp_path, stdin=subprocess.DEVNULL)
    )
    assert answer["generated_tokens"] > 0
    run(edgekv, "inspect", "Hi", "--html", "page.html", folder=tmp_path, stdin=subprocess.DEVNULL)
    assert (tmp_path / "page.html").is_file()
