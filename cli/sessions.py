"""`edgekv sessions`: lists, shows, renames, exports and removes the sessions that were saved by name."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import edgekv
from edgekv.memory.sizes import format_size
from edgekv.models import find_model, known_models, read_header
from edgekv.models.header import header_digest
from edgekv.store.kept_folder import JOURNAL, bytes_of, described, is_kept, remove_session
from edgekv.store.ownership import Ownership
from edgekv.store.session_names import existing_path_of, path_of, rename, saved_names
from edgekv.store.snapshot_file import open_snapshot_file
from edgekv.store.transcript import write_transcript

from .shared_options import AsJson

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List, show, rename, export and remove the sessions that were saved by name.",
)

KINDS = {"model": str, "policy": str, "kv_type": str, "budget": int, "block": int, "n_past": int, "n_cells": int}

Name = Annotated[str, typer.Argument(help="Name of a saved session.", autocompletion=saved_names)]


@app.command("list")
def list_sessions(as_json: AsJson = False) -> None:
    """List what `chat --session`, `/save` and `read --save` have saved."""
    found = [_listed(name) for name in saved_names()]
    if as_json:
        print(json.dumps(found))
        return
    table = Table("name", Column("title", min_width=16), "model", Column("tokens", justify="right"), "size", "saved")
    for it in found:
        if "error" in it:
            table.add_row(escape(it["name"]), "cannot be read", *[""] * 4)
            continue
        numbers = f"{it['n_past']:,}", format_size(it["bytes"]), _date(it["saved"])
        table.add_row(*map(escape, (it["name"], it["title"], it["model"], *numbers)))
    Console().print(table)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Check a saved session, and show the model and options that it was saved with."""
    path = existing_path_of(name)
    found = _described(name, checked=True) | {"path": str(path)}
    if as_json:
        print(json.dumps(found))
        return
    for key, value in (found | {"bytes": format_size(found["bytes"]), "saved": _date(found["saved"])}).items():
        print(f"{key}: {value}")


@app.command("rename")
def rename_session(name: Name, new: Annotated[str, typer.Argument(help="Its new name.")]) -> None:
    """Give a saved session another name."""
    rename(name, new)


@app.command()
def export(
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: Markdown in .md, JSON in .json.")],
    model: Annotated[
        str | None,
        typer.Option(
            "-m",
            "--model",
            help="Model that it was saved with. Default: looked for among those that have names.",
            envvar="EDGEKV_MODEL",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Write the messages and replies of a saved session to a file, without loading the model's weights."""
    from edgekv.conversations.saved_text import saved_digest, saved_turns  # other commands load no library

    path = existing_path_of(name)
    if not force and Ownership().is_foreign(file):
        raise edgekv.SessionFileError(f"{str(file)!r} is there already; name another file, or replace it with --force")
    found = _described(name, checked=False)
    of = find_model(model) if model is not None else _model_of(str(saved_digest(_about(path))), found["model"])
    with saved_turns(path, of) as turns:
        write_transcript(file, turns)


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(help="Names of saved sessions.", autocompletion=saved_names)],
) -> None:
    """Remove saved sessions."""
    for path in [existing_path_of(name) for name in names]:
        try:
            remove_session(path)
        except OSError as error:
            raise edgekv.SessionFileError(
                f"{str(path)!r} cannot be removed: {error.strerror}; check the permissions of its folder"
            ) from error


def _model_of(digest: str, file_name: str) -> Path:
    """Return the model with a name that a session was saved with. Raises ModelNotFoundError if there is none."""
    for path in _named_models():
        try:
            if header_digest(path, read_header(path)) == digest:
                return path
        except edgekv.ModelError:
            continue  # a file in a cache that edgekv cannot run
    raise edgekv.ModelNotFoundError(
        f"it was saved with the model {file_name!r}, which is not among those of `edgekv models list`; give its path "
        "with --model"
    )


def _named_models() -> Iterator[Path]:
    from edgekv.models.caches import found_models  # other commands read no caches

    yield from (path for known in known_models() if (path := known.path) is not None)
    yield from (model.path for model in found_models())


def _date(seconds: float) -> str:
    """Return a time in this machine's zone. seconds: since 1970"""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _listed(name: str) -> dict[str, Any]:
    """Return the description of a session, unchecked, or the reason why it cannot be read."""
    try:
        return _described(name, checked=False)
    except edgekv.SessionFileError as error:
        return {"name": name, "error": str(error)}


def _about(path: Path, *, checked: bool = False) -> dict[str, Any]:
    """Return the description of a session. checked: compare the checksum of a whole file"""
    if is_kept(path):
        return described(path)
    with open_snapshot_file(path, checked=checked) as file:
        return dict(file.header.values)


def _described(name: str, *, checked: bool) -> dict[str, Any]:
    """Return the figures of a session, as far as they can be printed. Raises SessionFileError."""
    path = path_of(name)
    header = _about(path, checked=checked)
    about = header.get("saved_with")
    if not isinstance(about, dict) or not all(isinstance(about.get(key), kind) for key, kind in KINDS.items()):
        raise edgekv.SessionFileError(f"{str(path)!r} is damaged: it does not say what it was saved with")
    values = {key: about[key] if kind is int else _printable(about[key]) for key, kind in KINDS.items()}
    title = header.get("title")  # files of before have none
    values = {"title": _printable(title) if isinstance(title, str) else "", **values}
    newest = (path / JOURNAL if is_kept(path) else path).stat()
    return {"name": name, **values, "bytes": bytes_of(path), "saved": newest.st_mtime}


def _printable(text: str) -> str:
    """Return a text from a file with terminal control characters escaped."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])
