"""The `edgekv` command, in this process or as a program, with options under which a tiny model answers in seconds."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from unittest import mock

from children import LIMIT_S

COMMAND = [sys.executable, "-c", "import sys; from edgekv.cli.main import main; sys.exit(main())"]
# an edgekv that kills itself when a chat has read 64 tokens of a text
KILLED = """
import contextlib, os, signal, sys
from edgekv.cli.chat import command
from edgekv.cli.main import main

@contextlib.contextmanager
def bar():
    yield lambda it: it.tokens_total > it.tokens_done == 64 and os.kill(os.getpid(), signal.SIGKILL)

command.reading_bar = bar
sys.exit(main())
"""
SMALL = ["--memory", "4GiB", "--budget", "64", "--block", "32", "--threads", "1"]
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def words(n):
    """Return a text of n words that all differ."""
    return " ".join(f"word{i}" for i in range(n))


def run_here(*arguments, stdin="", folder=None, **variables):
    """Run the command in this process; returns what `subprocess.run` returns of a program, with text.

    Starting a program takes longer than most commands, and a command's output does not depend on it. The descriptors
    themselves are replaced, so that what the library and worker processes write is caught too. `stdin` is a text that
    is piped in, an open file, or None for no input. Output has the encoding that PYTHONIOENCODING names.
    """
    with _caught(stdin, variables.get("PYTHONIOENCODING", "utf-8")) as caught, _beginning(arguments, folder, variables):
        import typer.main

        from edgekv.cli.main import main

        with mock.patch.object(typer.main, "get_command", _built(typer.main)):
            caught.returncode = main()
    return caught


def run_program(*arguments, stdin="", folder=None, **variables):
    """Run the command as a program, whose memory is its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@functools.cache
def _built(typer_main):
    """Typer's function from an application to its command, which it builds once: that takes as long as a reply."""
    return functools.cache(typer_main.get_command)


@contextlib.contextmanager
def _caught(stdin, encoding):
    """Standard input and output of one command, in place of this process's own."""
    done = subprocess.CompletedProcess([], 1, "", "")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with contextlib.ExitStack() as stack:
        caught = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
        given = stack.enter_context(_input(stdin))
        kept = [os.dup(number) for number in range(3)]
        try:
            for number, file in enumerate((given, *caught)):
                os.dup2(file.fileno(), number)
            streams = {
                name: stack.enter_context(open(number, mode, closefd=False, encoding=encoding))
                for number, (name, mode) in enumerate(STREAMS)
            }
            with mock.patch.multiple(sys, **streams):
                try:
                    yield done
                finally:
                    streams["stdout"].flush()
                    streams["stderr"].flush()
        finally:
            for number, own in enumerate(kept):
                os.dup2(own, number)
                os.close(own)
        for name, file in zip(("stdout", "stderr"), caught, strict=True):
            file.seek(0)
            setattr(done, name, file.read().decode(encoding))


@contextlib.contextmanager
def _input(stdin):
    """A file that gives a text as a pipe does, or the file that is given."""
    if stdin is None:
        with open(os.devnull, "rb") as nothing:
            yield nothing
    elif not isinstance(stdin, str):
        yield stdin
    else:
        reading, writing = os.pipe()

        def write():
            with contextlib.suppress(BrokenPipeError), open(writing, "w", encoding="utf-8") as pipe:
                pipe.write(stdin)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with open(reading, "rb") as pipe:
                yield pipe
        finally:
            writer.join()


@contextlib.contextmanager
def _beginning(arguments, folder, variables):
    """The state in which a program begins; afterwards that of this process, and nothing of the command goes on."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    threads, before = set(threading.enumerate()), Path.cwd()
    with mock.patch.dict(os.environ, variables), warnings.catch_warnings():
        warnings.resetwarnings()
        for ignored in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", ignored)
        os.chdir(folder or before)
        sys_argv = mock.patch.object(sys, "argv", ["edgekv", *map(str, arguments)])
        try:
            with sys_argv:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                yield
        finally:
            os.chdir(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
    left = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    assert not left, f"{arguments[:1]} leaves threads behind: {left}"
