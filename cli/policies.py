"""`edgekv policies`: the policies that a spec may name."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from edgekv.policies import Available, available


def policies(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array and nothing else.")] = False,
) -> None:
    """List the eviction policies, their options, and what may wrap them."""
    listed = available()
    if as_json:
        print(json.dumps([_as_dict(policy) for policy in listed]))
        return
    table = Table(Column("policy", no_wrap=True), Column("default", no_wrap=True), "meaning")
    for policy in listed:
        table.add_section()
        mark = "+" if policy.kind == "wrapper" else ""
        meaning = f"{policy.summary} ({policy.paper or policy.source})".lstrip()
        table.add_row(f"[bold]{mark}{escape(policy.name)}[/bold]", "", escape(meaning))
        for field in _told(policy):
            table.add_row(f"  {_spelling(field)}", _value(field.default), escape(_meaning(field)))
    console = Console(highlight=False)
    console.print(table)
    console.print('A policy is base or base+wrapper, with options: "snapkv(pool=max)+critical"', soft_wrap=True)


def _told(policy: Available) -> list[dataclasses.Field[Any]]:
    """Return the options of a policy that are not only for a paper's tables."""
    return [field for field in policy.options if not field.metadata["of_paper"]]


def _as_dict(policy: Available) -> dict[str, Any]:
    options = [
        {"name": field.name, "default": field.default}
        | {key: field.metadata[key] for key in ("help", "alias", "choices", "minimum", "maximum", "odd")}
        for field in _told(policy)
    ]
    named = {name: getattr(policy, name) for name in ("name", "kind", "source", "summary", "paper")}
    return named | {"options": options}


def _spelling(field: dataclasses.Field[Any]) -> str:
    alias = field.metadata["alias"]
    return f"{field.name} or {alias}" if alias else field.name


def _value(value: Any) -> str:
    """As a spec spells it."""
    return {"True": "on", "False": "off", "None": "none"}.get(str(value), str(value))


def _meaning(field: dataclasses.Field[Any]) -> str:
    """An option's help, and the words it may be."""
    choices = ", ".join(field.metadata["choices"])
    return f"{field.metadata['help']}: {choices}" if choices else str(field.metadata["help"])
