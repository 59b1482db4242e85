"""An `edgekv` on a shell's PATH that answers in milliseconds: each use is a fork of one process that imported it.

A shell hands it arguments, folder, environment and standard streams. The default model is a tiny one, replies have a
few tokens, an evaluation measures its smallest case, and a server listens at a free port. `curl` asks that server.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from unittest import mock

from children import LIMIT_S

SOCKET, SERVERS = ".edgekv.socket", ".edgekv.servers"
N_TOKENS = 5  # the longest reply: random weights know no end
MESSAGE_BYTES = 1 << 17
PRELUDE = f"#!{sys.executable} -IS\nimport json, os, socket, sys\nhome = {{home!r}}\n"
HAND_OVER = f"""
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as here:
    here.connect(os.path.join(home, {SOCKET!r}))
    call = {{"argv": sys.argv, "folder": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(here, [json.dumps(call).encode()], [0, 1, 2])
    status = here.recv(1)
sys.exit(status[0] if status else 70)
"""
ASK_SERVER = f"""
import argparse, urllib.parse, urllib.request
parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("-H", dest="header", action="append", default=[])
parser.add_argument("-d", dest="data")
given = parser.parse_args()
port = open(os.path.join(home, {SERVERS!r})).read().split()[-2]
url = urllib.parse.urlsplit(given.url)._replace(netloc="127.0.0.1:" + port).geturl()
headers = dict(header.split(": ", 1) for header in given.header)
request = urllib.request.Request(url, given.data and given.data.encode(), headers)
print(urllib.request.urlopen(request).read().decode())
"""


@contextlib.contextmanager
def commands_in(home, model, stand_ins=()):
    """Yield home/bin, a folder for PATH with these programs, and stand-ins for others, which do nothing."""
    programs = home / "bin"
    programs.mkdir()
    beginning = PRELUDE.format(home=str(home))
    texts = {
        "edgekv": beginning + HAND_OVER,
        "python": beginning + HAND_OVER,  # python -m MODULE
        "curl": beginning + ASK_SERVER,
        "uv": '#!/bin/sh\nshift; exec "$@"\n',  # uv run COMMAND
    }
    for name, text in (texts | dict.fromkeys(stand_ins, "#!/bin/sh\n")).items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, __file__, str(home), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline()  # it listens
        yield programs
    finally:
        process.communicate(timeout=LIMIT_S)


def end_servers(home):
    """End the servers that were started."""
    for line in (home / SERVERS).read_text().splitlines() if (home / SERVERS).exists() else ():
        os.kill(int(line.split()[1]), signal.SIGKILL)
    (home / SERVERS).unlink(missing_ok=True)


def main(home, model):
    """Import the command line, and run each call in a child. All of them end when standard input does."""
    from edgekv.cli.command_table import COMMANDS

    for target in COMMANDS.values():
        importlib.import_module(f"edgekv.cli.{target.partition(':')[0]}")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with small_answers(model), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(home / SOCKET))
        listener.listen()
        print("listens", flush=True)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            caller = listener.accept()[0]
            if os.fork() == 0:
                listener.close()
                answer(caller, home)
            caller.close()
    os.killpg(0, signal.SIGKILL)


def answer(caller, home):
    """Run the command of a caller in this process, which ends with it."""
    message, streams, *_ = socket.recv_fds(caller, MESSAGE_BYTES, 3)
    call = json.loads(message)
    for number, (stream, name, mode) in enumerate(zip(streams, ("stdin", "stdout", "stderr"), "rww", strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(call["environment"])
    os.chdir(call["folder"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 70
    try:
        status = run(call["argv"], caller, home)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        caller.send(bytes([status]))
        os._exit(status)


def run(argv, caller, home):
    """Run `edgekv`, or a module by `python -m`; returns the exit status."""
    if Path(argv[0]).name == "python":
        _, _, module, *arguments = argv
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    from edgekv.cli.main import main as run_command
    from edgekv.server import serving

    sys.argv = argv
    with mock.patch.object(serving, "serve", functools.partial(serve, caller, home, serving.serve)):
        return run_command()


def serve(caller, home, whole, application, listener):
    """Tell the caller that the server is there, and serve without its streams, which it waits for the end of."""
    with open(home / SERVERS, "a") as servers:
        print(listener.getsockname()[1], os.getpid(), file=servers)
    caller.send(bytes([0]))
    with open(os.devnull, "r+b") as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    whole(application, listener)


@contextlib.contextmanager
def small_answers(model):
    """Have commands answer in milliseconds."""
    import typer.main

    from edgekv.cli.main import app
    from edgekv.evals import grid
    from edgekv.generation.request import GenerationRequest
    from edgekv.server import serving

    measured, listening, most = grid.run, serving.listening, GenerationRequest.most_tokens.fget

    def smallest(cases, results, how):
        return measured(sorted(cases, key=lambda case: case.length)[:1], results, how)

    built = functools.cache(typer.main.get_command)
    built(app)
    with (
        mock.patch.object(typer.main, "get_command", built),
        mock.patch("edgekv.models.catalog._known_file", return_value=model),
        mock.patch.object(GenerationRequest, "most_tokens", property(lambda it: min(N_TOKENS, most(it)))),
        mock.patch.object(grid, "run", smallest),
        mock.patch.object(serving, "listening", lambda host, _: listening(host, 0)),
    ):
        yield


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
