"""The wheel, built and used as its users do: a fresh environment, away from the checkout."""

from __future__ import annotations

import json
import re
import subprocess
import zipfile
from pathlib import Path

from wheel_environment import CHECKOUT, run

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
            assert not (name.endswith((".cmake", ".pc")) and re.search(rb'[ "=](?:/\w|[A-Z]:)', content)), name


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
