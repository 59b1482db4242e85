"""Requests that mean harm: is each refused with the right status, does the server live, does its memory stay?

    python tests/stress/server_hostile.py [--bodies 1000] [--slow 100]

Over a tiny model: damaged bodies; heads and bodies that come byte by byte or stop; bodies that are too large, nested
too deep, or of too many values; wrong keys; foreign names in Host and pages in Origin; too many connections.
After it an honest request is answered, and resident memory is compared with that after a first round.
Predicted: every status as it should be; memory grows by less than 2 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
from collections import Counter
from pathlib import Path

import httpx

from edgekv.testing.models.tiny import make_tiny
from edgekv.testing.server_process import Serving, serving

PATH = "/v1/chat/completions"
KEY = "bench-key"
HONEST = {"messages": [{"role": "user", "content": "Hello there, how are you?"}], "max_tokens": 4, "temperature": 0}
HEADERS = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}


def damaged(chance: random.Random) -> bytes:
    """A body with something wrong, or many things."""
    raw = bytearray(json.dumps(HONEST | {"stream": chance.random() < 0.5}).encode())
    for _ in range(chance.randrange(1, 8)):
        at = chance.randrange(len(raw) + 1)
        kind = chance.randrange(4)
        if kind == 0:
            raw[at : at + 1] = b"%c" % chance.randrange(256)
        elif kind == 1:
            del raw[at : at + chance.randrange(1, 20)]
        elif kind == 2:
            raw[at:at] = chance.choice(
                [b"[" * 300, b'"', b"\\u0000", b"\xff\xfe", b"-1e999", b"null", b"{}", b"9" * 400]
            )
        else:
            raw = raw[:at] or bytearray(b"x")
    return bytes(raw)


async def malformed(url: str, n: int, seed: int) -> Counter[str]:
    """Statuses of damaged bodies: 400, or 200 where the damage did no harm."""
    chance, seen = random.Random(seed), Counter[str]()
    async with httpx.AsyncClient(base_url=url, timeout=60, headers=HEADERS) as http:
        for _ in range(n):
            status = (await http.post(PATH, content=damaged(chance))).status_code
            seen[f"damaged body {status}" if status in (200, 400) else f"WRONG: damaged body {status}"] += 1
    return seen


async def slow(url: str, n: int, seed: int) -> Counter[str]:
    """Count how senders that never finish are ended: by an answer 408 or a closed connection."""
    host, port = httpx.URL(url).host, httpx.URL(url).port
    chance, seen = random.Random(seed), Counter[str]()
    head = f"POST {PATH} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    head += "Content-Length: 100000\r\n\r\n"

    async def send() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        whole = chance.random() < 0.5
        kind = "slow body" if whole else "slow head"
        try:
            writer.write(head.encode() if whole else head[: chance.randrange(1, len(head) - 4)].encode())
            async with asyncio.timeout(60):
                while not (waiting := asyncio.create_task(reader.read(64))).done():
                    writer.write(b"x" if whole else b"")
                    done, _ = await asyncio.wait([waiting], timeout=0.5)
                    if done:
                        break
                    waiting.cancel()
            first = waiting.result() if not waiting.cancelled() else b""
            right = first.startswith(b"HTTP/1.1 408") if whole else first == b""
            seen[kind + (" ended" if right else f" WRONG: {first!r}")] += 1
        except (ConnectionError, BrokenPipeError):
            seen[kind + " ended"] += 1
        except TimeoutError:
            seen[kind + " WRONG: never ended"] += 1
        finally:
            writer.close()

    await asyncio.gather(*(send() for _ in range(n)))
    return seen


async def refused(url: str) -> Counter[str]:
    """Statuses of what must not come through."""
    seen = Counter[str]()
    honest = json.dumps(HONEST)
    many = '{"messages":[' + ",".join(['{"role":"user","content":"x"}'] * 60_000) + "]}"
    cases = [
        ("too large", 413, {"content": b" " * (2 << 20)}, {}),
        ("nested deep", 400, {"content": '{"messages":' + "[" * 100_000}, {}),
        ("nested deep and whole", 400, {"content": '{"x":' + "[" * 5_000 + "]" * 5_000 + "}"}, {}),
        ("too many values", 400, {"content": many[: 1 << 20]}, {}),
        ("no key", 401, {"content": honest}, {"Authorization": ""}),
        ("wrong key", 401, {"content": honest}, {"Authorization": "Bearer bench-kez"}),
        ("foreign Host", 421, {"content": honest}, {"Host": "evil.example"}),
        ("foreign Origin", 403, {"content": honest}, {"Origin": "https://evil.example"}),
        ("no JSON", 415, {"content": honest}, {"Content-Type": "text/plain"}),
        ("long head", 431, {"content": honest}, {"X-Long": "x" * 40_000}),
    ]
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        for name, status, sent, headers in cases:
            try:
                got: object = (await http.post(PATH, **sent, headers=HEADERS | headers)).status_code
            except httpx.TransportError:  # it was answered and closed before all had been sent
                got = status if name in ("too large", "long head") else "closed"
            seen[f"{name} {got}" if got == status else f"WRONG: {name} {got}"] += 1
        too_many = await asyncio.gather(
            *(asyncio.open_connection(http.base_url.host, http.base_url.port) for _ in range(200))
        )
        closed = 0
        for reader, _ in too_many:
            with contextlib.suppress(TimeoutError):
                closed += (await asyncio.wait_for(reader.read(12), 0.05)).startswith(b"HTTP/1.1 503")
        for _, writer in too_many:
            writer.close()
        seen[f"of 200 connections {closed} refused" if 60 <= closed <= 80 else f"WRONG: {closed} refused"] += 1
        await asyncio.sleep(0.5)
        answer = await http.post(PATH, json=HONEST, headers=HEADERS)
        seen["alive" if answer.status_code == 200 else f"WRONG: honest request {answer.status_code}"] += 1
    return seen


async def attacked(server: Serving, arguments: argparse.Namespace, seed: int) -> Counter[str]:
    seen = await malformed(server.url, arguments.bodies, seed)
    seen += await refused(server.url)
    return seen + await slow(server.url, arguments.slow, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny(Path(folder, "tiny.gguf"))
        options = ["-m", str(model), "--memory", "1GiB", "--budget", "64", "--block", "32", "--threads", "1"]
        with serving([*options, "--api-key", KEY]) as server:
            asyncio.run(attacked(server, arguments, 1))
            before = server.resident_bytes()
            seen = asyncio.run(attacked(server, arguments, 2))
            grown = server.resident_bytes() - before
    for what, n in sorted(seen.items()):
        print(f"{n:5} {what}")
    print(f"memory grew by {grown / (1 << 20):.2f} MiB")
    raise SystemExit(any("WRONG" in what for what in seen) or grown > 2 << 20)


if __name__ == "__main__":
    main()
