"""Files of a wheel: none of those that only a checkout's tests and benches use, and no import of one."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("check_wheel", ROOT / "scripts" / "check_wheel.py")
check_wheel = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check_wheel)

MODULES = [path.relative_to(ROOT) for name in ("edgekv", "cli", "models") for path in (ROOT / name).rglob("*.py")]
CARRIED = [path for path in MODULES if not {path, *path.parents} & check_wheel.OF_TESTS]


@pytest.fixture(scope="module")
def excluded():
    """The paths that pyproject.toml leaves out of a wheel."""
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["overrides"]
    (found,) = (each["wheel"]["exclude"] for each in overrides if "exclude" in each.get("wheel", {}))
    return found


def test_what_is_left_out_is_what_is_checked_and_is_there(excluded):
    assert {Path(name) for name in excluded} == check_wheel.OF_TESTS
    assert all((ROOT / name).exists() for name in excluded)


@pytest.mark.parametrize(
    "name",
    [
        "edgekv/testing/models/tiny.py",
        "edgekv/testing/models/families/latent.py",
        "edgekv/testing/programs.py",
        "edgekv/tests/test_one.py",
        "bench/papers/oracle.py",
        "research/one.py",
    ],
)
def test_a_file_of_tests_or_benches_is_refused(name):
    with pytest.raises(check_wheel.WheelError, match=f"the wheel has {name}"):
        check_wheel.check_files(["edgekv/__init__.py", name])


def test_what_users_import_is_not_refused():
    check_wheel.check_files(["../../../bin/edgekv", "edgekv-0.1.0.dist-info/RECORD", *map(str, CARRIED)])


def test_no_module_of_a_wheel_imports_what_it_leaves_out():
    left_out = {".".join(path.with_suffix("").parts) for path in check_wheel.OF_TESTS}
    for path in CARRIED:
        package = path.parent.parts if path.parts[0] == "edgekv" else ("edgekv", *path.parent.parts)
        for name in imported(ast.parse((ROOT / path).read_text(encoding="utf-8")), package):
            assert not any(f"{name}.".startswith(f"{module}.") for module in left_out), path


def imported(tree, package):
    """Yield the dotted names that a module of a package imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            where = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{where}.{alias.name}" for alias in node.names)
