"""Count the source files of edgekv that a question passes through, from the command line to the second token.

    uv run python scripts/trace_ask.py [--all] [ARGUMENTS OF edgekv ask]

A file counts when one of its functions runs, in whatever thread; imports alone do not. A move goes from one file into
another, by a call or a return. Planning and the loading of the model happen once a runtime, and are counted apart from
the reply; so is `Runtime.session`.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

from edgekv import Runtime
from edgekv.cli.main import main as edgekv_command
from edgekv.session import Session

ASK = ["-f", "examples/oz.txt", "Who is the stranger?", "--max-tokens", "4"]
ROOT = Path(__file__).resolve().parents[1]
TREES = tuple(str(ROOT / name) + "/" for name in ("edgekv", "cli", "models"))


class Trace:
    """The files that functions run in, in order, until `stop` is set."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.stages: dict[str, int] = {}
        self._seen: dict[CodeType, str] = {}

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note the file of a Python function that is called, or that a call returns into."""
        runs = {"call": frame, "return": frame.f_back}.get(event)
        if runs is None:
            return
        code = runs.f_code
        name = self._seen.get(code)
        if name is None:
            inside = code.co_filename.startswith(TREES) and code.co_name not in ("<module>", "<lambda>")
            is_body = code.co_flags & 2 == 0  # a class body; functions have CO_NEWLOCALS
            name = self._seen[code] = "" if not inside or is_body else str(Path(code.co_filename).relative_to(ROOT))
        if name and (not self.steps or self.steps[-1] != name):
            self.steps.append(name)

    def note(self, stage: str) -> None:
        """Begin a stage."""
        self.stages[stage] = len(self.steps)


def main(arguments: list[str]) -> None:
    if {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return
    show_all = "--all" in arguments
    arguments = [argument for argument in arguments if argument != "--all"] or ASK
    trace = Trace()
    opened, made, asked = Runtime.__init__, Runtime.session, Session.ask

    def open_runtime(self: Runtime, *given: object, **further: object) -> None:
        trace.note("open")
        opened(self, *given, **further)  # type: ignore[arg-type]
        trace.note("opened")

    def ask(self: Session, *given: object, **further: object) -> object:
        trace.note("ask")
        stages = iter(("first", "second"))
        pieces = asked(self, *given, **further)  # type: ignore[arg-type]
        for piece in pieces:
            if stage := next(stages, ""):
                trace.note(stage)
            yield piece

    def open_session(self: Runtime, *given: object, **further: object) -> Session:
        trace.note("session")
        session = made(self, *given, **further)  # type: ignore[arg-type]
        trace.note("session made")
        return session

    Runtime.__init__, Runtime.session, Session.ask = open_runtime, open_session, ask  # type: ignore[method-assign]
    sys.argv = ["edgekv", "ask", *arguments]
    threading.setprofile(trace.profile)
    sys.setprofile(trace.profile)
    try:
        status = edgekv_command()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if status:  # the command has said why
        sys.exit(status)
    ends = trace.stages
    for what, steps in {
        "command line": [
            *trace.steps[: ends["open"]],
            *trace.steps[ends["opened"] : ends["session"]],
            *trace.steps[ends["session made"] : ends["ask"]],
        ],
        "plan and load": trace.steps[ends["open"] : ends["opened"]],
        "Runtime.session": trace.steps[ends["session"] : ends["session made"]],
        "reply, to the first token": trace.steps[ends["ask"] : ends["first"]],
        "all, to the first token": trace.steps[: ends["first"]],
        "the second token": trace.steps[ends["first"] : ends["second"]],
    }.items():
        files = dict.fromkeys(steps)
        print(f"{what}: {len(files)} files, {len(steps):,} moves")
        if show_all:
            print(*(f"    {name}" for name in files), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
