"""Requests to a server that begin alike: the tokens read for each, and the time to its first token.

Claims (bench/RESULTS.md): of six requests with questions about one text, two read it; the third and later ones take at
most 0.1 of the first one's time to the first token. A new conversation under a known system message reads its own
message alone.

Each run has a server of its own. A system message of `--system` tokens is given to three conversations, and then
`--length` tokens of the book are asked about in six requests. Times are those of the server's process until the first
token comes: of its processors, which decide where other programs use the machine, and of the clock. A run that is in
`--results` is not repeated.

    python bench/shared_beginnings.py --book examples/oz.txt --results shared.jsonl --threads 1
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from edgekv.evals import prose
from edgekv.evals.results import Results
from edgekv.models.catalog import find_model
from edgekv.testing import programs
from edgekv.testing.server_process import Serving, serving

GREETINGS = ("Hello, who are you?", "What can you do for me?", "Tell me about the weather.")
QUESTIONS = (
    "Where does Dorothy live?",
    "What is the dog called?",
    "Who is the wicked witch?",
    "What do the shoes look like?",
    "Which road leads to the city?",
    "How does the house fly?",
)

# Before anything was measured. Of 4,030 tokens a later request reads its question and less than a block of 256: on
# average 0.04 of them, and the file of its cells takes as long as 10 tokens. A greeting is 12 of 545 tokens.
PREDICTED = {("system", 1): "0.06", ("system", 2): "0.06", ("text", 1): "1.0"}
PREDICTED |= {("text", i): "0.05" for i in range(2, len(QUESTIONS))}
MOST = 0.1  # a third request's processor time / the first one's


def processor_s(pid: int) -> float:
    """Return the seconds of processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def asked(server: Serving, messages: list[dict[str, str]]) -> dict[str, float]:
    """Send a request; returns its tokens, and the seconds to its first token."""
    wall, processor = time.perf_counter(), processor_s(server.process.pid)
    found: dict[str, float] = {}
    for chunk in server.chunks({"messages": messages, "max_tokens": 2, "temperature": 0}):
        if "wall" not in found and any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
            found["wall"] = time.perf_counter() - wall
            found["processor"] = processor_s(server.process.pid) - processor
        if usage := chunk.get("usage"):
            found["tokens"] = usage["prompt_tokens"]
            found["reused"] = usage["prompt_tokens_details"]["cached_tokens"]
    return found


def run(options: list[str], system: str, text: str) -> dict[str, list[dict[str, float]]]:
    """Ask a new server everything."""
    said: dict[str, list[dict[str, float]]] = {}
    with serving(options) as server:
        asked(server, [{"role": "user", "content": "Warm up."}])
        said["system"] = [
            asked(server, [{"role": "system", "content": system}, {"role": "user", "content": greeting}])
            for greeting in GREETINGS
        ]
        said["text"] = [asked(server, [{"role": "user", "content": f"{text}\n\n{question}"}]) for question in QUESTIONS]
    return said


def main() -> None:
    """Measure runs, and print medians over them of the ratios within each."""
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--results", type=Path, required=True, help="a file (JSON lines) of all runs, which resumes")
    parser.add_argument("--memory", default="256MiB")
    parser.add_argument("--system", type=int, default=520, help="tokens")
    parser.add_argument("--length", type=int, default=4000, help="tokens")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    path = str(find_model(args.model))
    with prose.vocabulary(args.model) as model:
        tokens = prose.first_tokens(model, prose.read_book(args.book), args.length)
        system, text = prose.text_of(model, tokens[: args.system]), prose.text_of(model, tokens)
    options = ["--model", path, "--memory", args.memory, *(["--threads", str(args.threads)] if args.threads else [])]
    named = {name: getattr(args, name) for name in ("memory", "system", "length", "threads")} | {"model": path}
    runs = []
    with Results(args.results) as results:
        for i in range(args.runs):
            config = named | {"book": str(args.book), "run": i}
            if results.get(config) is None:
                results.add(config, run(options, system, text))
            runs.append(results.get(config))
    rows, thirds = [], []
    for kind in ("system", "text"):
        for i, one in enumerate(runs[0][kind]):
            ratios = [
                programs.median([it[kind][i][clock] / it[kind][0][clock] for it in runs])
                for clock in ("processor", "wall")
            ]
            seconds = programs.median([it[kind][i]["wall"] for it in runs])
            rows.append(
                [f"{kind} {i + 1}", one["tokens"], one["reused"], one["tokens"] - one["reused"], f"{seconds:.2f}"]
                + [f"{ratio:.3f}" for ratio in ratios]
                + [PREDICTED.get((kind, i), "")]
            )
            if (kind, i) == ("text", 2):
                thirds.append(ratios[0])
    header = ["request", "tokens", "reused", "read", "first token s", "x processor", "x wall", "predicted"]
    programs.print_table(header, rows)
    programs.write_json(args.json, runs)
    sys.exit(thirds[0] > MOST)


if __name__ == "__main__":
    main()
