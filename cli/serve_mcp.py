"""`edgekv mcp`: reads documents and answers questions about them for agents, over MCP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edgekv.extras import needed

from .shared_options import opened, with_common_options


@with_common_options
def mcp(
    runtime: dict[str, Any],
    folder: Annotated[
        list[Path] | None,
        typer.Option(help="Folder whose files may be read; again for more. Default: the current one."),
    ] = None,
) -> None:
    """Offer agents two tools over standard input and output (MCP): read a document once, and ask about it.

    What is read is saved under a name, as by `edgekv read --save NAME`, and so outlives the server.
    """
    needed("mcp.server", "mcp")  # the plan counts what it takes
    from edgekv.server.mcp_documents import Documents, mcp_server

    with opened(runtime, goes_back=True) as rt:
        mcp_server(Documents(rt, folder or [Path.cwd()])).run("stdio")
