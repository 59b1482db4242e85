"""The process with the model is killed with -9, again and again, under load: does only the running request fail?

    python tests/stress/server_kills.py [--kills 20] [-- -m MODEL ...]

Clients hold conversations over `edgekv serve --isolated` while the worker is killed at random moments. Each kill may
fail the one request that runs, with 503; all others are answered, and conversations go on with what was read before.
Predicted: as many 503 as kills, or fewer, where a kill met nobody; no other failure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import tempfile
from collections import Counter
from pathlib import Path

import httpx

from edgekv.testing.models.tiny import make_tiny
from edgekv.testing.server_process import Serving, serving

CLIENTS = 8
PATH = "/v1/chat/completions"


async def client(name: int, url: str, ended: asyncio.Event, seen: Counter[str]) -> None:
    chance = random.Random(name)
    messages: list[dict[str, str]] = []
    async with httpx.AsyncClient(base_url=url, timeout=600) as http:
        while not ended.is_set():
            if not messages or len(messages) > 20:
                messages = []
            messages.append({"role": "user", "content": f"{name} " + "word " * chance.randrange(20, 200)})
            answer = await http.post(PATH, json={"messages": messages, "max_tokens": 16, "temperature": 0})
            if answer.status_code == 200:
                seen["answered"] += 1
                messages.append(answer.json()["choices"][0]["message"])
                cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
                seen["went on" if cached > 0 else "began"] += 1
            else:
                seen[f"{answer.status_code} {answer.json()['error']['code']}"] += 1
                messages.pop()


async def killed(server: Serving, n_kills: int) -> Counter[str]:
    chance, ended, seen = random.Random(0), asyncio.Event(), Counter[str]()
    clients = [asyncio.create_task(client(i, server.url, ended, seen)) for i in range(CLIENTS)]
    last = None
    for _ in range(n_kills):
        await asyncio.sleep(chance.uniform(0.5, 3))
        while (worker := server.worker_pid()) in (None, last):  # it is started again
            await asyncio.sleep(0.05)
        before = seen["answered"]
        while seen["answered"] < before + 3:  # it is at work
            await asyncio.sleep(0.05)
        last = worker
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    before = seen["answered"]
    while seen["answered"] < before + CLIENTS:
        await asyncio.sleep(0.1)
    ended.set()
    await asyncio.gather(*clients)
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny = make_tiny(Path(folder, "tiny.gguf"), n_ctx_train=4096)
        options = arguments.options or ["-m", str(tiny), "--memory", "1GiB", "--budget", "512", "--threads", "1"]
        with serving(["--isolated", "--keep", str(CLIENTS), *options]) as server:
            seen = asyncio.run(killed(server, arguments.kills))
    print(f"{arguments.kills} kills: {dict(seen.most_common())}")
    others = [what for what in seen if what not in ("answered", "went on", "began", "503 model_restarted")]
    raise SystemExit(bool(others) or seen["503 model_restarted"] > arguments.kills)


if __name__ == "__main__":
    main()
