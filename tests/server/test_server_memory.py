"""The promise, over HTTP: the peak of the server stays under its plan, with slots, many clients and long bodies."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from asgi import JSON
from test_chat_completions import PATH
from test_serve_command import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CLIENTS = 24


def test_the_peak_stays_under_the_plan(default_model):
    options = ["-m", default_model, "--memory", "320MiB", "--budget", "224", "--block", "64", "--kv-type", "f16"]
    options += ["--parallel", "4"]
    with serving(*options, small=()) as (process, url, _):
        props = httpx.get(f"{url}/props").json()

        def body(i):
            """A short question, or a body that is as long as one may be, and is refused after it was read."""
            messages = [{"role": "user", "content": f"{i} What is this? " * (1 if i % 3 else 40_000)}]
            further = {"edgekv": {"on_overflow": "error"}, "max_tokens": 2, "stream": i % 6 == 1}
            return json.dumps({"messages": messages, **further}).encode()

        def ask(content):
            """Return the status of a reply. Bodies that come together may fill their memory, so 429 asks again."""
            with httpx.Client(timeout=300) as client:
                while (reply := client.post(url + PATH, content=content, headers=JSON)).status_code == 429:
                    time.sleep(int(reply.headers["retry-after"]))
                return reply.status_code

        with ThreadPoolExecutor(CLIENTS) as clients:
            statuses = list(clients.map(ask, [body(i) for i in range(CLIENTS)]))  # a head must come within 10 s
        assert statuses == [200 if i % 3 else 400 for i in range(CLIENTS)]
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        (peak,) = (int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    assert peak <= props["planned_peak_bytes"] <= props["ceiling_bytes"]
