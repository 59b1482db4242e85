"""`edgekv serve`: a model for programs that speak the API of OpenAI or of Anthropic."""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.archive.space import disk_folder
from edgekv.extras import needed
from edgekv.memory import process
from edgekv.memory.sizes import parse_size
from edgekv.store.temp_folder import TempFolder

from .render import archive_line, loading
from .shared_options import with_common_options

# sections of its own options in the help
WHO, WORK, KEPT = "Who may ask", "Waiting and working", "Conversations"


@with_common_options
def serve(
    runtime: dict[str, Any],
    host: Annotated[str, typer.Option(help="Address to listen at; other machines need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 = any that is free.")] = 8080,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="EDGEKV_API_KEY",
            help="A key that requests must bear; again for more. Default: none.",
            rich_help_panel=WHO,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further name that requests may ask by; again for more.",
            rich_help_panel=WHO,
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A web page that may ask, as https://NAME; again for more.",
            rich_help_panel=WHO,
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's name to clients. Default: that of its file.")] = None,
    queue: Annotated[
        int,
        typer.Option(
            min=0,
            help="Requests that may wait; more are refused with 429.",
            rich_help_panel=WORK,
        ),
    ] = 64,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Requests that are answered at a time, each with cells of its own. Default: 1, 2, 4 or 8, as many as "
            "leave a conversation its cells.",
            rich_help_panel=WORK,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds for a request, with its wait, but without reading.",
            rich_help_panel=WORK,
        ),
    ] = 600,
    keep: Annotated[
        int,
        typer.Option(
            min=1,
            help="Conversations that are kept for their next message.",
            rich_help_panel=KEPT,
        ),
    ] = 8,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep conversations and shared beginnings there as they grow, and find them after a restart.",
            rich_help_panel=KEPT,
        ),
    ] = None,
    state_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most that they take there; what was used longest ago goes first. Default: a quarter of what the "
            "disk has free.",
            rich_help_panel=KEPT,
        ),
    ] = None,
    conversations: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the page's conversations there, for all who may ask this server. Default: in each browser.",
            rich_help_panel=KEPT,
        ),
    ] = None,
    grammars: Annotated[
        bool,
        typer.Option(
            "--grammars/--no-grammars",
            help="Give JSON by a schema, and call tools; takes memory, of the default model some 23 MiB.",
        ),
    ] = True,
    swap_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Swap conversations out to this folder. Default: TMPDIR, or /var/tmp if that lies in memory.",
            rich_help_panel=KEPT,
        ),
    ] = None,
    swap_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="The most that beginnings which conversations share take there; 0 = keep none. Default: 256 MiB, or "
            "four times the cells.",
            rich_help_panel=KEPT,
        ),
    ] = None,
) -> None:
    """Serve the model to programs that speak the API of OpenAI, Anthropic or Ollama. Ctrl-C ends it.

    SIGUSR1 lowers the memory ceiling as far as it can be, SIGUSR2 restores it.
    """
    for module in ("starlette", "uvicorn", "pydantic", "prometheus_client", *(["llguidance"] if grammars else [])):
        needed(module, "server")
    from edgekv.api.server_settings import Settings
    from edgekv.planning.default_memory import default_memory_line
    from edgekv.server.application import Application
    from edgekv.server.serving import listening, serve
    from edgekv.server.slots import open_runtime

    process.use_one_heap()
    for option, named in (("state_dir", state_dir), ("conversations", conversations), ("swap_dir", swap_dir)):
        _make(option, named)
    on_disk = disk_folder()
    with closing(TempFolder(swap_dir or Path(on_disk or tempfile.gettempdir()))) as folder:
        model = runtime.pop("model")
        options = runtime | {
            "parallel": parallel,
            "grammars": grammars,
            # a folder in memory that nobody named is none for archives
            "swap_dir": folder.path if swap_dir or on_disk else None,
            "swap_bytes": swap_bytes,
        }
        settings = Settings.at(
            host,
            api_keys=tuple(api_key or ()),
            hosts=tuple(allow_host or ()),
            origins=tuple(allow_origin or ()),
            name=name,
            queue=queue,
            request_s=timeout,
            sessions=keep,
            swap_dir=folder.path,
            state_dir=state_dir or (folder.path if runtime["isolated"] else None),
            state_bytes=None if state_bytes is None else parse_size(state_bytes),
            conversations_dir=conversations,
            focus=runtime["focus"],
        )
        with listening(host, port) as listener:
            with loading():
                application = Application.over(lambda: open_runtime(model, keep, **options), settings)
            opened = application.state.pool.runtime
            plan, n_slots = opened.plan, opened.options.parallel
            if runtime["memory"] is None and (line := default_memory_line(plan)):
                print(line, file=sys.stderr)
            address, bound = listener.getsockname()[:2]
            where = f"[{address}]" if ":" in address else address
            cells = f"{plan.budget_cells:,} cells"
            if n_slots > 1:
                cells = f"{n_slots} slots of {cells}"
            if line := archive_line(plan):
                print(line, file=sys.stderr)
            print(f"{plan.model.name}, {cells}: http://{where}:{bound}/v1", file=sys.stderr)
            serve(application, listener)


def _make(option: str, folder: Path | None) -> None:
    """See to it that a folder is there. Raises ConfigError."""
    if folder is not None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise edgekv.ConfigError(
                f"{option}={str(folder)!r} cannot be made: {error.strerror or error}; name another folder"
            ) from error
