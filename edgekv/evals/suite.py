"""A suite: grids in a TOML file, each a table of the fields of `Grid`."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from edgekv.errors import ConfigError, InputError
from edgekv.extras import needed

from .grid import Grid

FOLDER = Path(__file__).parent / "suites"


def suites(folder: Path = FOLDER) -> list[str]:
    """Return the names of the suites in a folder, by default edgekv's own."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load_suite(
    name: str,
    *,
    model: str | None = None,
    book: Path | None = None,
    samples: int | None = None,
    folder: Path = FOLDER,
    kind: type[Grid] = Grid,
) -> list[Grid]:
    """The grids of a known suite or of your own file, over this model and, but for those with data, this book.

    samples: texts for every combination; None = as the suite says
    folder: has the known suites, each NAME.toml
    kind: the grid that a table has the fields of

    A file has tables [[grid]] with fields of `Grid`; other fields are parameters of the task. Lists multiply the
    cases. Raises ConfigError for a name or content that cannot be, InputError for a file that cannot be read.
    """
    path = folder / f"{name}.toml" if name in suites(folder) else Path(name)
    if path.suffix != ".toml":
        raise ConfigError(
            f"suite {name!r} is unknown; possible: {', '.join(suites(folder))}, or the path of a .toml file"
        )
    toml = needed("tomllib" if sys.version_info >= (3, 11) else "tomli", "eval")
    try:
        tables = toml.loads(path.read_text(encoding="utf-8")).get("grid", [])
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}; give the path of a suite") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    if not tables or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ConfigError(f"{path} has no [[grid]]; see docs/evaluation.md for an example")
    given = {} if samples is None else {"samples": samples}
    return [_grid(kind, table | given, model, book) for table in tables]


def _grid(kind: type[Grid], table: dict[str, Any], model: str | None, book: Path | None) -> Grid:
    types = {field.name: str(field.type) for field in fields(kind) if field.name != "params"}
    own: dict[str, Any] = {"model": model, "book": None if "data" in table else book}
    params: dict[str, tuple[Any, ...]] = {}
    for name, value in table.items():
        several = tuple(value) if isinstance(value, list) else (value,)
        if name not in types:
            params[name] = several
        elif types[name].startswith("tuple"):
            own[name] = several
        elif isinstance(value, list):
            raise ConfigError(f"{name}={value} in a grid of the suite has several values; give one")
        else:
            own[name] = value
    try:
        own |= {name: Path(own[name]) for name in ("book", "data") if own.get(name) is not None}
        return kind(**own, params=params)
    except TypeError as error:
        raise ConfigError(f"a grid of the suite cannot be: {error}") from error
