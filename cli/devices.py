"""`edgekv devices` and `edgekv rpc-server`: what a build computes on, and lending this machine to another."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from edgekv.addresses import PORT
from edgekv.devices import devices as found_devices
from edgekv.devices.server import TIMEOUT_S, serve
from edgekv.errors import ConfigError
from edgekv.memory.sizes import format_size
from edgekv.options import default_threads


def devices(
    rpc: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,...", help="Servers whose devices are listed, too (edgekv rpc-server)."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that a server has to answer.")] = TIMEOUT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array and nothing else.")] = False,
) -> None:
    """List the devices that this build sees, and those that servers lend, with their memory."""
    if not 0 < timeout <= 600:
        raise ConfigError(f"timeout={timeout:g} is out of range; give more than 0, and at most 600 seconds")
    listed = found_devices(() if rpc is None else rpc, timeout_s=timeout)
    if as_json:
        print(json.dumps([dataclasses.asdict(device) for device in listed]))
        return
    table = Table(
        "device", "kind", "backend", Column("memory", justify="right"), Column("free", justify="right"), "description"
    )
    for device in listed:
        texts = (device.name, device.kind, device.backend)
        sizes = (format_size(device.total_bytes), format_size(device.free_bytes))
        table.add_row(*map(escape, (*texts, *sizes, device.description)))
    Console(highlight=False).print(table)


def rpc_server(
    host: Annotated[
        str, typer.Option(help="Address to listen at: loopback, or one of a private network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = PORT,
    threads: Annotated[
        int | None, typer.Option(min=1, max=512, help="Threads. Default: one for every processor.")
    ] = None,
) -> None:
    """Lend this machine's processor and memory to programs on ggml, one after another, by its RPC."""
    warning = "RPC is not encrypted and asks for no key: whoever reaches the port can use this process and its memory"
    print(f"edgekv: {warning}", file=sys.stderr)
    serve(host, port, default_threads() if threads is None else threads)
