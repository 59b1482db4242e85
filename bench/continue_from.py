"""Measure the cost of a client that resends its whole chat: tokens reused, and time against reading it anew.

Claim (bench/RESULTS.md): of a chat that differs in its last message only that message is read.

A chat of some turns about passages of a book is held by resending all of it for every turn, as clients of servers do.
Then it is resent in four ways: unchanged, gone on with, with another last message, and with another message half-way.
Each answer is also given by a session that has seen nothing. Times are of processor time until the first token.

    python bench/continue_from.py --book novel.txt --threads 1
    python bench/continue_from.py --book novel.txt --threads 1 --budget 512
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import edgekv
from edgekv.evals import prose
from edgekv.generation.sampler import GREEDY
from edgekv.testing import programs

Messages = Sequence[dict[str, str]]

# Before anything was measured: ten turns of 100 tokens each way make some 2,100 tokens with the template. One message
# is 110 of them, so 0.05 of the tokens are read, at the end, where attention takes longest: 0.08 of the time. A
# checkpoint of 2,048 cells is 45 MiB in f16, which takes 0.03 s to read back, of some 8 s.
PREDICTED = {
    "unchanged": "0.08",
    "gone on with": "0.08",
    "another last message": "0.08",
    "another message half-way": "0.55",
}
MOST_READ = 1.25  # most tokens read / tokens of the last message; the template adds some around it


def answered(session: edgekv.Session, messages: Messages, n_tokens: int) -> tuple[str, float]:
    """The reply, and the processor time until its first token."""
    started = time.process_time()
    pieces = session.continue_from(messages, max_tokens=n_tokens, sampling=GREEDY, allow_loops=True)
    first = next(pieces, "")
    seconds = time.process_time() - started
    return first + "".join(pieces), seconds


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=100, help="of each message, and of each reply")
    parser.add_argument("--budget", type=int, default=2048, help="cells")
    options = parser.parse_args()
    book = prose.read_book(options.book)
    n = options.tokens
    with prose.vocabulary(options.model) as model:
        tokens = prose.first_tokens(model, book, (options.turns + 2) * n)
        texts = [prose.text_of(model, tokens[i : i + n]) for i in range(0, len(tokens), n)]
    settings = {
        "memory": "100%",
        "policy": "keydiff",
        "budget": options.budget,
        "threads": options.threads,
        "focus": False,
    }
    with edgekv.Runtime(options.model, **settings) as runtime:
        with runtime.session(log=True) as session:
            chat: list[dict[str, str]] = []
            for text in texts[: options.turns]:
                chat.append(said("user", text))
                chat.append(said("assistant", answered(session, chat, n)[0]))
            half = 2 * (options.turns // 2)
            resent = {
                "unchanged": chat[:-1],
                "gone on with": [*chat, said("user", texts[-1])],
                "another last message": [*chat[:-2], said("user", texts[-2])],
                "another message half-way": [*chat[:half], said("user", texts[-2]), *chat[half + 1 : -1]],
            }
            figures = {}
            for what, messages in resent.items():
                answered(session, chat[:-1], n)  # back to where the chat was
                reply, seconds = answered(session, messages, n)
                figures[what] = {"reply": reply, "seconds": seconds, "read": session.stats.read_tokens}
                figures[what]["reused"] = session.stats.reused_tokens
        for what, messages in resent.items():
            with runtime.session(log=True) as session:
                reply, seconds = answered(session, messages, n)
                figures[what] |= {"anew": seconds, "all": session.stats.read_tokens}
                figures[what]["same"] = figures[what].pop("reply") == reply
    programs.print_table(
        ["the chat is resent", "tokens", "reused", "read", "s", "s anew", "ratio", "predicted", "same reply"],
        [
            (
                *(what, f["all"], f["reused"], f["read"], f"{f['seconds']:.2f}", f"{f['anew']:.2f}"),
                *(f"{f['seconds'] / f['anew']:.3f}", PREDICTED[what], "yes" if f["same"] else "no"),
            )
            for what, f in figures.items()
        ],
    )
    programs.write_json(options.json, figures)
    sys.exit(figures["another last message"]["read"] > MOST_READ * n)


if __name__ == "__main__":
    main()
