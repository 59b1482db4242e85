"""Collect the commands of the command line, and the installed modules that edgekv and typer import by name."""

import ast
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from PyInstaller.utils.hooks import collect_submodules, copy_metadata

PACKAGE = Path(__file__).parents[1]
IMPORTERS = ("import_module", "needed", "required")  # their first argument names a module


def imported_by_name(source: str) -> Iterator[str]:
    """Yield the module names that a source gives to a function that imports."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in IMPORTERS and call.args:
            constants = (part.value for part in ast.walk(call.args[0]) if isinstance(part, ast.Constant))
            texts = (constant for constant in constants if isinstance(constant, str))
            yield from (text for text in texts if all(map(str.isidentifier, text.split("."))))


def is_installed(module: str) -> bool:
    """Return whether the package of a module is installed. Imports nothing."""
    return find_spec(package_of(module)) is not None


def package_of(module: str) -> str:
    """Return the package that a module lies in."""
    return module.partition(".")[0]


named = {name for path in PACKAGE.rglob("*.py") for name in imported_by_name(path.read_text(encoding="utf-8"))}
by_package = packages_distributions()
distributions = {found for module in named for found in by_package.get(package_of(module), ())}

shells = collect_submodules("shellingham")  # by which --install-completion finds the shell
hiddenimports = [*collect_submodules("edgekv.cli"), *shells, *filter(is_installed, sorted(named))]
datas = [data for found in sorted(distributions) for data in copy_metadata(found)]  # some ask for their own version
