"""The `edgekv` command: sub-commands, and the one place where errors become messages and exit statuses."""

from __future__ import annotations

import sys

import typer
import typer.core

import edgekv

from . import ask, bench, chat, evaluate, inspect, models, plan, policies

typer.core.HAS_RICH = False  # with it, plain help shows brackets escaped for a rich help that is off

app = typer.Typer(
    name="edgekv",
    help="Read prompts of any length, and chat, under a memory ceiling.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(ask.ask)
app.command()(chat.chat)
app.add_typer(evaluate.app, name="eval")
app.command()(inspect.inspect)
app.command()(plan.plan)
app.command()(models.models)
app.command()(policies.policies)
app.command()(bench.bench)

INTERRUPTED = 130

# the first class that matches decides
EXIT_STATUS: tuple[tuple[type[edgekv.EdgeKVError], int], ...] = (
    (edgekv.CeilingError, 3),
    (edgekv.ModelError, 4),
    (edgekv.NativeError, 1),
    (edgekv.CeilingExceededError, 1),
    (edgekv.WorkerError, 1),
    (edgekv.EdgeKVError, 2),
)


def main() -> int:
    """Run the command line; returns the exit status: 0 ok, 2 usage, 3 cannot fit, 4 model unusable, 130 interrupted."""
    try:
        app()
    except edgekv.EdgeKVError as error:
        print(f"edgekv: {error}", file=sys.stderr)
        return next(status for kind, status in EXIT_STATUS if isinstance(error, kind))
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as exit_:  # typer ends every command with one
        return exit_.code if isinstance(exit_.code, int) else 0
    return 0
