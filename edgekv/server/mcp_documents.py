"""Documents for agents over MCP: a text is read once and saved under a name, and questions are answered from its cells.

Needs the extra `mcp`. The command is `edgekv mcp` (docs/mcp.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.from_thread
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import edgekv
from edgekv.counting import counted
from edgekv.generation.request import ProgressCallback
from edgekv.store.ownership import Ownership
from edgekv.store.session_names import default_name, existing_path_of, holds_only_text, path_of, save_as, saved_names

ANSWER_TOKENS = 512
INSTRUCTIONS = (
    "Documents of any length, read once by a small model on this machine. Call read_document for a file, then "
    "ask_document for each question about it; every question is the first one, and answers are short."
)


class Documents:
    """Texts that were read once, in the user's folder of saved sessions. Raises EdgeKVError for what goes wrong."""

    def __init__(self, runtime: edgekv.Runtime, folders: Sequence[Path]) -> None:
        """folders: files in them may be read, and no others"""
        self._runtime = runtime
        self._folders = [folder.resolve() for folder in folders]
        self._owned = Ownership()

    def read(self, path: str, name: str = "", *, again: bool = False, progress: ProgressCallback | None = None) -> str:
        """Read a file and save the session; return a report. again: replace the session of that name"""
        file = self._allowed(path)
        name = name or default_name(file.stem, "document")
        if path_of(name).is_file() and not again:
            return (
                f"{name!r} was read before; ask_document asks about it. If that was another file, name= keeps both; if "
                "the file has changed, again=true reads it anew"
            )
        if path_of(name).is_file():
            if not holds_only_text(path_of(name)):
                raise edgekv.ConfigError(f"{name!r} is a chat, which stays; give another name")
            self._owned.note(path_of(name))
        with self._runtime.session() as session:
            session.read(files=[file], progress=progress)
            name = save_as(session.save, name, self._owned)
            kept = min(session.n_cells, session.n_past)
            n_read = counted(session.n_past, "token")
            return f"read {file.name} as {name!r}: {n_read}, of which each head kept {kept:,} at most"

    def ask(self, name: str, question: str, *, progress: ProgressCallback | None = None) -> str:
        """Answer a question about the text that was read under a name."""
        with self._runtime.load_session(existing_path_of(name), history=False) as session:
            greedy = edgekv.Sampling(temperature=0)
            return "".join(session.ask(question, max_tokens=ANSWER_TOKENS, sampling=greedy, progress=progress))

    def names(self) -> list[str]:
        """Return the names of all texts that were read."""
        return [name for name in saved_names() if _is_text(name)]

    def _allowed(self, path: str) -> Path:
        """Return a file that may be read. Raises InputError for others."""
        file = Path(path).expanduser().resolve()
        if not any(file.is_relative_to(folder) for folder in self._folders):
            raise edgekv.InputError(
                f"{path!r} is not in {', '.join(map(str, self._folders))}; the owner allows other folders with --folder"
            )
        if not file.is_file():
            raise edgekv.InputError(f"{path!r} is not a file; give the path of a text or a document")
        return file


def mcp_server(documents: Documents) -> MCPServer:
    """Return the MCP server over documents, with three tools."""
    server = MCPServer("edgekv", instructions=INSTRUCTIONS, version=edgekv.__version__)

    def told(context: Context) -> ProgressCallback:
        """Return a callback that reports the progress of reading to the client, so that it keeps waiting."""

        def tell(progress: edgekv.Progress) -> None:
            anyio.from_thread.run(context.report_progress, progress.tokens_done, progress.tokens_total)

        return tell

    def answered(work: Callable[[], str]) -> str:
        """Return a result; errors of edgekv become errors of the tool."""
        try:
            return work()
        except edgekv.EdgeKVError as error:
            raise ToolError(str(error)) from error

    @server.tool()
    def read_document(path: str, context: Context, name: str = "", again: bool = False) -> str:
        """Read a text file, PDF, DOCX, EPUB or HTML page of any length once, and keep it under a name.

        This may take minutes. Later questions do not read it again, also not after a restart.
        """
        return answered(lambda: documents.read(path, name, again=again, progress=told(context)))

    @server.tool()
    def ask_document(name: str, question: str, context: Context) -> str:
        """Answer a question about a document that read_document has read, from what was kept of it."""
        return answered(lambda: documents.ask(name, question, progress=told(context)))

    @server.tool()
    def list_documents() -> list[str]:
        """List the names of the documents that were read."""
        return documents.names()

    return server


def _is_text(name: str) -> bool:
    try:
        return holds_only_text(path_of(name))
    except edgekv.SessionFileError:
        return False
