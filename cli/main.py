"""The `edgekv` command: sub-commands, and the one place where errors become messages and exit statuses."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Annotated

import typer
import typer.core
import typer.main

import edgekv
from edgekv.prompt.spool import PROC

from . import (
    ask,
    batch,
    bench,
    chat,
    complete,
    devices,
    evaluate,
    heads,
    inspect,
    models,
    plan,
    policies,
    pull,
    read,
    serve,
    sessions,
)
from .settings import defaults
from .wording import speak_of, worded

typer.core.HAS_RICH = False  # with it, plain help shows brackets escaped for a rich help that is off

app = typer.Typer(
    name="edgekv",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"edgekv {edgekv.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Read any prompt, and chat, inside a memory ceiling."""


app.command()(ask.ask)
app.command()(chat.chat)
app.command()(complete.complete)
app.command()(read.read)
app.add_typer(sessions.app, name="sessions")
app.add_typer(evaluate.app, name="eval")
app.command()(inspect.inspect)
app.command()(serve.serve)
app.command()(batch.batch)
app.command()(plan.plan)
app.command()(pull.pull)
app.add_typer(models.app, name="models")
app.command()(policies.policies)
app.command()(devices.devices)
app.command("rpc-server")(devices.rpc_server)
app.command()(bench.bench)
app.command()(heads.heads)
speak_of(app)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"edgekv: {worded(str(message))}", file=sys.stderr)


INTERRUPTED = 130
TERMINATED = 143

# the first class that matches decides
EXIT_STATUS: tuple[tuple[type[edgekv.EdgeKVError], int], ...] = (
    (edgekv.CeilingError, 3),
    (edgekv.ModelError, 4),
    (edgekv.NativeError, 1),
    (edgekv.DeviceError, 1),
    (edgekv.CeilingExceededError, 1),
    (edgekv.WorkerError, 1),
    (edgekv.EdgeKVError, 2),
)


def main() -> int:
    """Run the command line; returns the exit status: 0 ok, 2 usage, 3 cannot fit, 4 model unusable, 130 interrupted."""
    if not PROC.is_dir():  # copies of texts have names there, and something has to remove them
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    warnings.showwarning = _show_warning
    try:
        command = typer.main.get_command(app)
        command(default_map=defaults(command))
    except edgekv.EdgeKVError as error:
        print(f"edgekv: {worded(str(error))}", file=sys.stderr)
        return next(status for kind, status in EXIT_STATUS if isinstance(error, kind))
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as exit_:  # typer ends every command with one
        return exit_.code if isinstance(exit_.code, int) else 0
    return 0
