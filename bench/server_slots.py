"""A server that answers several requests at a time: tokens a second together, beside llama-server, and who waits.

Claims (bench/RESULTS.md): at the same memory edgekv's server gives at least as many tokens a second as llama-server
with as many slots. A short request beside a long text waits for two of its steps at most.

The first table: `--generate` tokens for each of 1, 2, 4 and 8 clients together, from a server of 8 slots. With
`--peer`, the command of a llama-server, that server gets `--context` tokens a slot and its own defaults otherwise. Its
peak is then edgekv's ceiling, whose plan takes as many cells as fit. The servers take turns, and each pair begins with
the other one.

Then one client asks about `--length` tokens of the book, and another one asks short questions meanwhile. Their times to
the first token are printed beside those of such questions alone, and beside what a step of the text takes.

    python bench/server_slots.py --book novel.txt --threads 1 --peer llama-server
"""

from __future__ import annotations

import http.client
import json
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

from edgekv.evals import prose
from edgekv.models.catalog import find_model
from edgekv.options import UBATCH
from edgekv.testing import programs
from edgekv.testing.programs import MIB, median
from edgekv.testing.server_process import Serving, serving

SLOTS = 8
CLIENTS = (1, 2, 4, 8)
NUMBERS = count()  # no two requests are the same, so none finds its prompt read

# Before anything was measured. Whole replies in threads gained 1.08, 1.50 and 2.45 with 2, 4 and 8; one reply was 1.5
# times as fast as llama.cpp's, whose sampling has no Python.
PREDICTED = {1: "1.4", 2: "1.2", 4: "1.1", 8: "1.1"}


def ask(server: Serving, text: str, n_tokens: int) -> tuple[float, int]:
    """Ask for the likeliest words; returns the seconds to the first token, and how many came."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": n_tokens, "temperature": 0}
    begun, first_s, n_said = time.perf_counter(), 0.0, 0
    for chunk in server.chunks(body):
        if not first_s and any(choice["delta"].get("content") for choice in chunk["choices"]):
            first_s = time.perf_counter() - begun
        n_said = (chunk.get("usage") or {}).get("completion_tokens", n_said)
    return first_s, n_said


def tokens_per_second(server: Serving, n_clients: int, n_tokens: int) -> float:
    """Return the tokens a second of clients that ask at the same time."""
    texts = [f"Write a Python program with ten functions, version {next(NUMBERS)}." for _ in range(n_clients)]
    started = time.perf_counter()
    with ThreadPoolExecutor(n_clients) as clients:
        asked = list(clients.map(lambda text: ask(server, text, n_tokens), texts))
    return sum(n_said for _, n_said in asked) / (time.perf_counter() - started)


@contextmanager
def llama_server(command: str, model: str, context: int, threads: int | None) -> Iterator[Serving]:
    """A llama-server with as many slots."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["-m", model, "--port", str(port), "--parallel", str(SLOTS), "-c", str(SLOTS * context)]
    options += [] if threads is None else ["-t", str(threads)]
    process = subprocess.Popen(
        [*shlex.split(command), *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    try:
        server = Serving(process, f"http://127.0.0.1:{port}")
        while not _is_up(port):
            if process.poll() is not None:
                raise SystemExit(f"{command} ended with {process.returncode}")
            time.sleep(0.2)
        yield server
    finally:
        process.kill()
        process.wait()


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def compare(ours: Serving, peer: Serving | None, pairs: int, n_tokens: int) -> list[dict[str, Any]]:
    """Print the table of both servers, and return its figures."""
    rows, figures = [], []
    for n in CLIENTS:
        found: dict[str, list[float]] = {"edgekv": [], "peer": []}
        for i in range(pairs + 1):
            for name, server in _in_turn(i, ours, peer):
                speed = tokens_per_second(server, n, n_tokens)
                if i:  # the first pair warms up
                    found[name].append(speed)
        figures.append({"clients": n, **found})
        row = [str(n)]
        for name, speeds in found.items():
            if speeds:
                row += [f"{median(speeds):.1f}", f"x{median(speeds) / median(figures[0][name]):.2f}"]
        if peer is not None:
            ratio = median([one / other for one, other in zip(found["edgekv"], found["peer"], strict=True)])
            row += [f"x{ratio:.2f}", PREDICTED[n]]
        rows.append(row)
    header = ["clients", "edgekv tok/s", "of one"]
    programs.print_table(header + ["llama-server", "of one", "edgekv / it", "predicted"] * (peer is not None), rows)
    return figures


def _in_turn(i: int, ours: Serving, peer: Serving | None) -> Sequence[tuple[str, Serving]]:
    both = [("edgekv", ours)] + ([] if peer is None else [("peer", peer)])
    return both if i % 2 else both[::-1]


def who_waits(server: Serving, text: str, n_asked: int) -> dict[str, Any]:
    """Return the seconds to the first token of short questions, alone and beside a text that is read."""
    alone = [ask(server, f"What is {next(NUMBERS)}?", 2)[0] for _ in range(n_asked)]
    reader = threading.Thread(target=ask, args=(server, text, 2))
    started = time.perf_counter()
    reader.start()
    time.sleep(1)
    beside = []
    while len(beside) < n_asked and reader.is_alive():
        first_s, _ = ask(server, f"What is {next(NUMBERS)}?", 2)
        if reader.is_alive():
            beside.append(first_s)
    reader.join()
    return {"alone": alone, "beside": beside, "read_s": time.perf_counter() - started}


def main() -> None:
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--peer", help="command of a llama-server")
    parser.add_argument("--context", type=int, default=1024, help="tokens of a slot of the llama-server")
    parser.add_argument("--memory", default="512MiB", help="ceiling without --peer")
    parser.add_argument("--generate", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--length", type=int, default=50_000, help="tokens of the text that is read")
    args = parser.parse_args()
    path = str(find_model(args.model))
    memory, peak = args.memory, None
    if args.peer is not None:
        with llama_server(args.peer, path, args.context, args.threads) as peer:
            tokens_per_second(peer, SLOTS, args.context - 64)
            peak = peer.peak_bytes()
        memory = str(peak)
        print(f"llama-server holds {peak / MIB:.0f} MiB with {SLOTS} slots of {args.context} tokens")
    options = ["--model", path, "--memory", memory, "--parallel", str(SLOTS), "--no-grammars"]
    options += [] if args.threads is None else ["--threads", str(args.threads)]
    with serving(options) as ours:
        connection = http.client.HTTPConnection(ours.url.removeprefix("http://"))
        connection.request("GET", "/props")
        props = json.load(connection.getresponse())
        print(f"edgekv: {SLOTS} slots of {props['budget']} cells, block {props['block']}, {props['kv_type']}")
        if args.peer is None:
            figures = compare(ours, None, args.pairs, args.generate)
        else:
            with llama_server(args.peer, path, args.context, args.threads) as peer:
                figures = compare(ours, peer, args.pairs, args.generate)
        with prose.vocabulary(args.model) as model:
            book = prose.first_tokens(model, prose.read_book(args.book), args.length)
            text = prose.text_of(model, book)
        waits = who_waits(ours, text, 20)
        n_read = min(props["block"], UBATCH)  # tokens of a step
        block_s = waits["read_s"] * n_read / args.length
        alone, beside, most = (
            median(waits["alone"]),
            median(waits["beside"]),
            max(waits["beside"], default=float("nan")),
        )
        print(
            f"a short question: first token after {alone:.3f} s alone, {beside:.3f} s beside a text of {args.length:,} "
            f"tokens (at most {most:.3f} s, of {len(waits['beside'])}); {n_read} tokens of it: {block_s:.3f} s"
        )
        print(f"edgekv held {ours.peak_bytes() / MIB:.0f} of {props['ceiling_bytes'] / MIB:.0f} MiB")
    programs.write_json(args.json, {"peer_peak": peak, "props": props, "clients": figures, "waits": waits})


if __name__ == "__main__":
    main()
