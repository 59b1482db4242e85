"""A reply through the server against the same one from `Session`: time to the first token, tokens a second after it.

Claim (bench/RESULTS.md): the server costs at most 3 % of the time to the first token, and 5 % of a token.

A server runs beside this process, which has a runtime with the same options. Both are given the same text, which
neither has seen, in turn: a message of `--length` tokens, and a reply of `--generate` tokens, the most likely ones.

    python bench/server_speed.py --book novel.txt --threads 1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import edgekv
from edgekv.evals import prose
from edgekv.models.catalog import find_model
from edgekv.testing import programs
from edgekv.testing.server_process import Serving, serving


def from_server(server: Serving, text: str, n: int) -> Iterator[str]:
    """The pieces of a reply, as they come."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": n,
        "temperature": 0,
        "edgekv": {"focus": False},
    }
    for chunk in server.chunks(body):
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                yield piece


def from_session(runtime: edgekv.Runtime, text: str, n: int) -> Iterator[str]:
    """Yield the pieces of a reply by a session of this process, opened as the server opens its sessions."""
    with runtime.session(history=True) as session:
        history = [{"role": "user", "content": text}]
        yield from session.continue_from(
            history, focus=False, max_tokens=n, sampling=edgekv.Sampling(temperature=0), progress=lambda _: None
        )


def timed(reply: Callable[[], Iterator[str]]) -> dict[str, object]:
    """Return the text, the speed of the first piece (1 / seconds), and pieces a second after it."""
    begun = time.perf_counter()
    times, said = [], []
    for piece in reply():
        times.append(time.perf_counter())
        said.append(piece)
    return {"first": 1 / (times[0] - begun), "rate": (len(times) - 1) / (times[-1] - times[0]), "said": "".join(said)}


def main() -> None:
    """Measure pairs, and print medians and ratios."""
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--memory", default="320MiB")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=10)
    args = parser.parse_args()

    with prose.vocabulary(args.model) as model:
        book = prose.first_tokens(model, prose.read_book(args.book), (args.pairs + 1) * args.length)
        texts = [prose.text_of(model, book[i : i + args.length]) for i in range(0, len(book), args.length)]
    path = str(find_model(args.model))
    options = ["--model", path, "--memory", args.memory, *(["--threads", str(args.threads)] if args.threads else [])]
    pairs = []
    with serving(options) as server, edgekv.Runtime(path, memory=args.memory, threads=args.threads) as runtime:
        for i, text in enumerate(texts):

            def here(text: str = text) -> Iterator[str]:
                return from_session(runtime, text, args.generate)

            def there(text: str = text) -> Iterator[str]:
                return from_server(server, text, args.generate)

            both = {reply: timed(reply) for reply in ((here, there) if i % 2 else (there, here))}
            if i:  # the first pair warms up
                pairs.append((both[here], both[there]))
    same = sum(ours["said"] == theirs["said"] for ours, theirs in pairs)
    programs.print_pairs(("Session", "server"), pairs, ("first", "rate"))
    print(f"{same} of {len(pairs)} replies are the same")
    programs.write_json(args.json, pairs)


if __name__ == "__main__":
    main()
