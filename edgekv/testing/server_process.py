"""A server that benches ask: `edgekv serve` in a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any


@dataclass
class Serving:
    """A running server. url: where it is asked"""

    process: subprocess.Popen[str]
    url: str

    def worker_pid(self) -> int | None:
        """The process with the model, if it is another one."""
        lists = Path(f"/proc/{self.process.pid}/task").glob("*/children")  # each thread has its own
        children = [child for path in lists for child in path.read_text().split()]
        return int(children[-1]) if children else None

    def chunks(self, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Ask for a chat completion as a stream, and yield its chunks. Raises SystemExit if the server refuses."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with closing(HTTPConnection(self.url.removeprefix("http://"))) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise SystemExit(f"the server answers {answer.status}: {answer.read().decode()}")
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])

    def peak_bytes(self) -> int:
        """The most that the process with the model has held, as the kernel counts it."""
        return status_bytes(self.worker_pid() or self.process.pid, "VmHWM")

    def resident_bytes(self) -> int:
        """Return the resident bytes of the server's own process."""
        return status_bytes(self.process.pid, "VmRSS")


def status_bytes(pid: int, field: str) -> int:
    """Return the bytes that a process holds ("VmRSS") or held at most ("VmHWM")."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


@contextmanager
def serving(options: Sequence[str]) -> Iterator[Serving]:
    """A server with these options, which is ended as a service is."""
    command = [sys.executable, "-m", "edgekv", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"http://\S+(?=/v1)", line)
            if found:
                break
        else:
            raise SystemExit("the server does not start")
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)  # a full pipe would stop it
        try:
            yield Serving(process, found[0])
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            drain.wait(10)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
