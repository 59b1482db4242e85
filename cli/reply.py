"""Command-line options of commands that reply: how tokens are chosen, and what ends a reply."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.generation.request import MAX_TOKENS
from edgekv.prompt.text import read_text

from .shared_options import gathered

SchemaFile = Annotated[Path | None, typer.Option(metavar="FILE", help="The answer is JSON that fits this JSON schema.")]
GrammarFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The answer follows this grammar, in GBNF or Lark.")
]


def with_reply_options(*, temp: float, min_p: float = 0.0) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a reply, with its own defaults; it receives them as one dict, `reply`."""
    temperature, least = temp, min_p

    def options(
        temp: Annotated[float, typer.Option(help="Temperature; 0 = always the most likely token.")] = temperature,
        top_k: Annotated[
            int, typer.Option(help="With a temperature, choose among so many of the most likely tokens; 0 = all.")
        ] = 40,
        top_p: Annotated[
            float, typer.Option(help="Of these, choose among those that together reach this probability.")
        ] = 0.95,
        min_p: Annotated[
            float, typer.Option(help="Of these, choose among those this much as likely as the first; 0 = all.")
        ] = least,
        repeat_penalty: Annotated[
            float, typer.Option(help="Make the last 64 tokens that were said less likely to come again; 1 = off.")
        ] = 1.1,
        seed: Annotated[int | None, typer.Option(help="Seed of the sampler. Default: a new one each time.")] = None,
        max_tokens: Annotated[int, typer.Option(help="Longest reply, in tokens.")] = MAX_TOKENS,
        stop: Annotated[
            list[str] | None,
            typer.Option(
                metavar="TEXT", help="End the reply before this text; again for more. $'\\n' is a line break."
            ),
        ] = None,
        allow_loops: Annotated[
            bool, typer.Option("--allow-loops", help="Go on where the reply goes round in a circle.")
        ] = False,
    ) -> None:
        """Never called: its parameters are the options."""

    return lambda command: gathered(command, options, "reply", variables=True)


def reply_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """The options as arguments of `Session.ask` and `Session.chat`. Raises ConfigError for values that cannot work."""
    if options["max_tokens"] < 1:
        raise edgekv.ConfigError(f"max_tokens={options['max_tokens']} is not possible; give at least 1")
    sampling = edgekv.Sampling(
        temperature=options["temp"],
        top_k=options["top_k"],
        top_p=options["top_p"],
        min_p=options["min_p"],
        repeat_penalty=options["repeat_penalty"],
        seed=options["seed"],
    )
    ending = {name: options[name] for name in ("max_tokens", "allow_loops")}
    return {"sampling": sampling, "stop": options["stop"] or (), **ending}


def held_to(json_schema: Path | None, grammar: Path | None) -> dict[str, str]:
    """Return the schema and the grammar that are named, as arguments of a reply. Raises InputError."""
    files = {"json_schema": json_schema, "grammar": grammar}
    return {name: "".join(read_text(path)) for name, path in files.items() if path is not None}
