"""The `edgekv` command: sub-commands, and the one place where errors become messages and exit statuses."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import warnings
from typing import Annotated, Any

import click
import typer
import typer.core
import typer.main

import edgekv
from edgekv.prompt.spool import copies_are_nameless

from .command_table import Commands, as_help
from .settings import defaults
from .wording import message_of, tell, wants_json, worded

typer.core.HAS_RICH = False  # otherwise plain help shows brackets escaped for a rich help that is off

app = typer.Typer(
    name="edgekv",
    cls=Commands,
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
    _open_closed_streams()
    _replace_foreign_characters()
    if not copies_are_nameless():  # copies of texts have names there, and something has to remove them
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    warnings.showwarning = _show_warning
    try:
        return _run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError:
        what = "the system gives this process no more memory; raise the limit of the process (ulimit -v), or end others"
        tell(what, "MemoryError", 1, sys.argv[1:])
        return 1
    except OSError as error:
        return _failed(error)


def _open_closed_streams() -> None:
    """Open the null device for each standard stream that was closed, so that no other file gets its descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _replace_foreign_characters() -> None:
    """Have the standard streams replace characters that their encoding lacks, at which a reply would end."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run() -> int:
    command = typer.main.get_command(app)
    arguments = as_help(sys.argv[1:])
    settings: dict[str, dict[str, Any]] = {}
    try:
        settings = defaults(command)
        ended = command(arguments, standalone_mode=False, default_map=settings)
    except SystemExit as exit_:
        ended = exit_.code
    except click.Abort:
        print("Aborted!", file=sys.stderr)
        return 1
    except click.ClickException as error:
        message = message_of(error, command, arguments, settings)
        if wants_json(arguments):
            tell(message, "UsageError", error.exit_code, arguments)
        elif message == error.format_message():
            error.show()
        else:
            click.UsageError(message, getattr(error, "ctx", None)).show()
        return error.exit_code
    except edgekv.EdgeKVError as error:
        status = next(status for kind, status in EXIT_STATUS if isinstance(error, kind))
        tell(message_of(error, command, arguments, settings), type(error).__name__, status, arguments)
        return status
    sys.stdout.flush()  # an error of a full disk can still be shown here
    return ended if isinstance(ended, int) else 0


def _failed(error: OSError) -> int:
    """Say what the system refused. An error that names no file is about standard output, which is not used again."""
    reason = error.strerror or str(error)
    if error.errno is None:  # raised by a library, such as the one that looks for the shell of --install-completion
        reason = reason or "the shell that runs edgekv is unknown; use bash, zsh, fish or PowerShell"
    elif error.filename is not None:
        reason = f"{str(error.filename)!r}: {reason}; check the path and its permissions"
    else:
        with contextlib.suppress(OSError, ValueError):  # the flush at the exit would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"edgekv: standard output cannot be written: {reason}; send it to a disk with room", file=sys.stderr)
        return 1
    tell(reason, "OSError", 1, sys.argv[1:])
    return 1
