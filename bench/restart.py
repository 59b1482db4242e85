"""Time a server that was killed to its first token, with a long system message and tools that it had read before.

Claim (RESULTS.md): after a restart the first token of a prompt of 15,000 shared tokens takes at most a tenth of the
time that it takes a server that never read them.

    python bench/restart.py --book war-and-peace.txt
    python bench/restart.py --book war-and-peace.txt --tokens 4000 --runs 3 -- --archive 4GiB
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from edgekv.testing import programs
from edgekv.testing.server_process import Serving, serving

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a name up",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
CHARS_PER_TOKEN = 4


def first_token_s(server: Serving, system: str, question: str) -> tuple[float, int, int]:
    """Return the seconds to the first token of a reply, the tokens of the prompt, and those that were not read."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"messages": messages, "tools": [TOOL], "tool_choice": "none", "max_tokens": 2, "temperature": 0}
    started, seconds, usage = time.monotonic(), 0.0, {}
    for chunk in server.chunks(body):
        if not seconds and chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
            seconds = time.monotonic() - started
        usage = chunk.get("usage") or usage
    return seconds, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=15_000, help="tokens of the system message, about")
    parser.add_argument("--runs", type=int, default=1)
    arguments, options = parser.parse_known_args()
    system = arguments.book.read_text(encoding="utf-8")[: CHARS_PER_TOKEN * arguments.tokens]
    options = [it for it in options if it != "--"]
    options += [*(["-m", arguments.model] if arguments.model else []), "--threads", str(arguments.threads or 1)]
    rows: list[dict[str, Any]] = []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            state = [*options, "--state-dir", folder]
            with serving(state) as server:
                cold, n_tokens, _ = first_token_s(server, system, "Who is the first to speak?")
                server.process.kill()
            started = time.monotonic()
            with serving(state) as server:
                ready = time.monotonic() - started
                warm, _, n_reused = first_token_s(server, system, "Where are they?")
            n_bytes = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        rows.append({"tokens": n_tokens, "cold_s": cold, "after_s": warm, "ratio": warm / cold, "reused": n_reused})
        rows[-1] |= {"start_s": ready, "MiB": n_bytes / programs.MIB}
    programs.print_table(
        [*rows[0]], [[f"{it:.3g}" if isinstance(it, float) else it for it in row.values()] for row in rows]
    )
    programs.write_json(arguments.json, rows)
    sys.exit(max(row["ratio"] for row in rows) > 0.1)


if __name__ == "__main__":
    main()
