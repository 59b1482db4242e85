"""`edgekv models`: the models on this machine that have names, and the architectures that run."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from edgekv.errors import ConfigError
from edgekv.memory.sizes import format_size
from edgekv.models import KnownModel, find_model, known_models, read_header

if TYPE_CHECKING:  # other commands read no caches
    from edgekv.models.caches import FoundModel

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of `edgekv models list`.")]
AsArray = Annotated[bool, typer.Option("--json", help="Print one JSON array and nothing else.")]
AsObject = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]

REMOVED_BY = {
    "ollama": "ollama rm {repo}:{tag}",
    "lmstudio": "LM Studio, or delete {path}",
}


@app.callback()
def models(
    context: typer.Context,
    architectures: Annotated[
        bool,
        typer.Option("--architectures", help="List the architectures instead: which run, what is evicted of them."),
    ] = False,
    suggest: Annotated[
        bool,
        typer.Option("--suggest", help="Suggest well-known models instead, each with the cells that it would have."),
    ] = False,
    memory: Annotated[
        str | None, typer.Option(help="Ceiling for --suggest: 2GiB, 25%. Default: half of what is free.")
    ] = None,
    as_json: AsArray = False,
) -> None:
    """List the models on this machine that have names; any other GGUF file is named by its path."""
    if memory is not None and not suggest:
        raise ConfigError(f"memory={memory} is a ceiling for suggestions; add --suggest, or leave it out")
    if context.invoked_subcommand is not None:
        return
    if suggest:
        from .suggest import suggest as show_suggestions  # other commands load no planner

        show_suggestions(memory, as_json=as_json)
        return
    (_list_architectures if architectures else _list_models)(as_json)


@app.command("list")
def list_models(as_json: AsArray = False) -> None:
    """List the models that have names: of packages, and in the caches of Hugging Face, ollama and LM Studio."""
    _list_models(as_json)


@app.command()
def show(name: Name, as_json: AsObject = False) -> None:
    """Show the facts in a model's file."""
    path = find_model(name)
    header = read_header(path)
    facts: dict[str, Any] = {
        "path": str(path),
        "architecture": header.architecture,
        "file_bytes": header.file_bytes,
        "weight_bytes": header.weight_bytes,
        "tensor_types": sorted({tensor.ggml_type.name for tensor in header.tensors}),
        "n_layer": header.n_layer,
        "n_embd": header.n_embd,
        "n_head": header.n_head,
        "n_head_kv": header.n_head_kv,
        "head_dim": header.head_dim,
        "n_ctx_train": header.n_ctx_train,
        "vocab_size": header.vocab_size,
        "chat_template": header.chat_template is not None,
    }
    if as_json:
        print(json.dumps(facts))
        return
    table = Table(Column(), Column(overflow="fold"), show_header=False)
    for fact, value in facts.items():
        table.add_row(fact, escape(_worded(fact, value)))
    Console(highlight=False).print(table)


@app.command()
def rm(
    name: Name,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Remove it without asking.")] = False,
) -> None:
    """Remove a model that `edgekv pull` brought. Those in the cache of Hugging Face are other programs', too."""
    from edgekv.models.caches import hugging_face

    model = _removable(name)
    what = f"{model.name}, {format_size(model.file_bytes)}, {model.path}"
    shared = "" if isinstance(model, KnownModel) else " Other programs that use this cache lose it too."
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"this removes {what}; say --yes")
        if not typer.confirm(f"Remove {what}?{shared}", err=True):
            raise typer.Exit(1)
    if isinstance(model, KnownModel):
        n_bytes = model.file_bytes
        model.fetched_path.unlink()
    else:
        n_bytes = hugging_face.remove(model)
    print(f"removed {model.name}, {format_size(n_bytes)}")


def _removable(name: str) -> FoundModel | KnownModel:
    """Return the model of a name that `edgekv pull` downloaded. Raises ConfigError for any other model."""
    from edgekv.models.caches import find_cached

    for known in known_models():
        if name == known.name:
            if known.fetched_path.is_file():
                return known
            package = known.requirement.partition("==")[0]
            raise ConfigError(f"{name!r} comes in the package {package}; remove it with: pip uninstall {package}")
    model = find_cached(name)
    if model is None:
        find_model(name)  # raises, unless it is a path
        raise ConfigError(f"{name!r} is a file of your own; delete it yourself")
    if model.source in REMOVED_BY:
        remedy = REMOVED_BY[model.source].format(repo=model.repo, tag=model.tag, path=model.path)
        raise ConfigError(f"{model.name!r} belongs to another program; remove it with: {remedy}")
    return model


def _list_models(as_json: bool) -> None:
    from edgekv.models.caches import found_models

    listed = [*map(_known, known_models()), *map(_found, found_models())]
    if as_json:
        print(json.dumps(listed))
        return
    table = Table(Column("name", overflow="fold"), Column("size", justify="right"), "licence", "from")
    for model in listed:
        source = model["source"] if model["installed"] else "not installed"
        table.add_row(escape(model["name"]), format_size(model["file_bytes"]), model.get("licence", ""), source)
    Console().print(table)


def _known(model: KnownModel) -> dict[str, Any]:
    path = model.path
    return asdict(model) | {"source": "package", "installed": model.is_installed, "path": path and str(path)}


def _found(model: FoundModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "file_name": model.file_name,
        "file_bytes": model.file_bytes,
        "source": model.source,
        "installed": True,
        "path": str(model.path),
    }


def _worded(fact: str, value: Any) -> str:
    if fact.endswith("_bytes"):
        return format_size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value)
    return "differs by layer" if value is None and fact.startswith("n_head") else str(value)


def _list_architectures(as_json: bool) -> None:
    from edgekv.models.architectures import ARCHITECTURES, KINDS, refused_table, running_table

    if as_json:
        print(json.dumps([asdict(it) | asdict(KINDS[it.kind]) for it in ARCHITECTURES]))
        return
    for heading, *rows in (running_table(), refused_table()):
        table = Table(*heading)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
