"""`edgekv sessions`: the sessions that were saved by name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import edgekv
from edgekv.memory.sizes import format_size
from edgekv.store.session_names import existing_path_of, path_of, saved_names
from edgekv.store.snapshot_file import SnapshotFile, open_snapshot_file

from .shared_options import AsJson

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, show and remove the sessions that were saved by name."
)

KINDS = {"model": str, "policy": str, "kv_type": str, "budget": int, "block": int, "n_past": int, "n_cells": int}

Name = Annotated[str, typer.Argument(help="Name of a saved session.")]


@app.command("list")
def list_sessions(as_json: AsJson = False) -> None:
    """List what `chat --session`, `/save` and `read --save` have saved."""
    found = [_described(name) for name in saved_names()]
    if as_json:
        print(json.dumps(found))
        return
    table = Table("name", "model", "policy", "tokens", "cells", "size", "saved")
    for it in found:
        if "error" in it:
            table.add_row(escape(it["name"]), "cannot be read", *[""] * 5)
            continue
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(it["saved"]))
        numbers = f"{it['n_past']:,}", f"{it['n_cells']:,}", format_size(it["bytes"]), when
        table.add_row(*map(escape, (it["name"], it["model"], it["policy"], *numbers)))
    Console().print(table)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Check a saved session, and say what it was saved with."""
    path = existing_path_of(name)
    with open_snapshot_file(path) as file:
        found = _figures(name, path, file) | {"path": str(path)}
    if as_json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        print(f"{key}: {value}")


@app.command()
def rm(names: Annotated[list[str], typer.Argument(help="Names of saved sessions.")]) -> None:
    """Remove saved sessions."""
    for path in [existing_path_of(name) for name in names]:
        try:
            path.unlink()
        except OSError as error:
            raise edgekv.SessionFileError(
                f"{str(path)!r} cannot be removed: {error.strerror}; check the permissions of its folder"
            ) from error


def _described(name: str) -> dict[str, Any]:
    """Return what a file says about itself, unchecked; or why it cannot be read."""
    path = path_of(name)
    try:
        with open_snapshot_file(path, checked=False) as file:
            return _figures(name, path, file)
    except edgekv.SessionFileError as error:
        return {"name": name, "error": str(error)}


def _figures(name: str, path: Path, file: SnapshotFile) -> dict[str, Any]:
    """Return the figures of a file, as far as they can be printed."""
    status, about = path.stat(), file.header.values.get("saved_with")
    if not isinstance(about, dict) or not all(isinstance(about.get(key), kind) for key, kind in KINDS.items()):
        raise file.damaged("it does not say what it was saved with")
    values = {key: about[key] if kind is int else _printable(about[key]) for key, kind in KINDS.items()}
    return {"name": name, **values, "bytes": status.st_size, "saved": status.st_mtime}


def _printable(text: str) -> str:
    """A stranger's text, which may hold what steers a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])
