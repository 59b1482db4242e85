"""Answers to short questions about texts: how many go round in a circle, are cut, and hold the fact that was asked for.

Every question of answers.json has one fact for an answer. Each text is read once, with the question in mind as in
`ask`, and the question is answered from there in every way of choosing tokens, in at most 300 tokens. Texts of more
tokens than the budget of 512 cells are counted apart. A loop is what `finish_reason` calls so.

With `--unasked` a text is read before its question is known, as a server reads a text for many questions.

    python research/answers.py
    python research/answers.py --way bare,greedy --way told,penalty=1.1 --show
    python research/answers.py --way told,penalty=1.1 --unasked --policy "keydiff(rope=off)+heads"
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import edgekv
from edgekv.generation.request import INSTRUCTION
from edgekv.generation.sampler import GREEDY, Sampling
from edgekv.testing import programs

TEXTS = Path(__file__).with_suffix(".json")


class Way(NamedTuple):
    """A way to put questions and choose tokens, with the predicted numbers of replies that loop, are cut, are right."""

    sampling: Sampling
    instruction: str
    predicted: tuple[int, int, int]


# "told": with the instruction before the question. Predictions are from before the first run.
WAYS = {
    "bare,greedy": Way(GREEDY, "", (20, 4, 20)),
    "bare,temperature=0.7": Way(Sampling(temperature=0.7, repeat_penalty=1.0, seed=0), "", (12, 6, 18)),
    "bare,penalty=1.1": Way(Sampling(repeat_penalty=1.1), "", (2, 6, 24)),
    "told,greedy": Way(GREEDY, INSTRUCTION, (8, 1, 24)),
    "told,penalty=1.05": Way(Sampling(repeat_penalty=1.05), INSTRUCTION, (2, 0, 26)),
    "told,penalty=1.1": Way(Sampling(repeat_penalty=1.1), INSTRUCTION, (0, 0, 27)),
    "told,penalty=1.15": Way(Sampling(repeat_penalty=1.15), INSTRUCTION, (0, 0, 26)),
    "told,penalty=1.1,temperature=0.7": Way(
        Sampling(temperature=0.7, repeat_penalty=1.1, seed=0), INSTRUCTION, (0, 0, 23)
    ),
}


def holds(answer: str, facts: list[str]) -> bool:
    """Return whether the answer contains one of the facts as a word, or as the beginning of its plural."""
    return any(re.search(rf"(?<!\w){re.escape(fact)}(s|es)?(?!\w)", answer, re.IGNORECASE) for fact in facts)


def answers(
    session: edgekv.Session, path: Path, pair: dict[str, Any], ways: list[str], n_tokens: int, *, unasked: bool
) -> list[dict[str, Any]]:
    """Answer one question in every way, each time from the same reading of the text."""
    question, found = pair["question"], []
    empty = session.snapshot()
    session.read(files=[path], focus=None if unasked else question)
    n_read, read = session.n_past, session.snapshot()
    for name in ways:
        way = WAYS[name]
        session.restore(read)
        pieces = session.ask(
            question, instruction=way.instruction, focus=True, max_tokens=n_tokens, sampling=way.sampling
        )
        answer = "".join(pieces)
        figures = {"finish_reason": session.stats.finish_reason, "generated_tokens": session.stats.generated_tokens}
        right = holds(answer, pair["facts"])
        found.append({"way": name, "question": question, "read": n_read, "answer": answer, "right": right} | figures)
    session.restore(empty)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path or known name of a GGUF model (default: the default model)")
    parser.add_argument("--threads", type=int, help="default: one for every processor")
    parser.add_argument("--way", action="append", choices=WAYS, help="repeatable; default: all")
    parser.add_argument("--budget", type=int, default=512, help="cells")
    parser.add_argument("--policy", default="keydiff")
    parser.add_argument("--unasked", action="store_true", help="read a text before its question is known")
    parser.add_argument("--tokens", type=int, default=300, help="longest answer")
    parser.add_argument("--show", action="store_true", help="print every answer")
    parser.add_argument("--json", type=Path, help="write the answers to this file too")
    options = parser.parse_args()

    texts = json.loads(TEXTS.read_text(encoding="utf-8"))["texts"]
    ways = options.way or list(WAYS)
    results: list[dict[str, Any]] = []
    settings = {name: getattr(options, name) for name in ("policy", "budget", "threads")} | {"memory": "100%"}
    with (
        tempfile.TemporaryDirectory(prefix="edgekv-bench-") as folder,
        edgekv.Runtime(options.model, **settings) as runtime,
        runtime.session() as session,
    ):
        path = Path(folder, "text.txt")
        for text in texts:
            path.write_text(text["text"], encoding="utf-8")
            for pair in text["pairs"]:
                results += answers(session, path, pair, ways, options.tokens, unasked=options.unasked)
                programs.write_json(options.json, results)
    if options.show:
        for result in results:
            print(f"{result['way']}  {result['question']}  {'right' if result['right'] else 'wrong'}")
            print(f"    {result['finish_reason']}: {result['answer']!r}")
    rows = []
    for name in ways:
        mine = [result for result in results if result["way"] == name]
        for group in ("all", "longer than the budget"):
            of = [result for result in mine if group == "all" or result["read"] > options.budget]
            counts = [
                sum(result["finish_reason"] == "loop" for result in of),
                sum(result["finish_reason"] == "length" for result in of),
                sum(result["right"] for result in of),
            ]
            predicted = ", ".join(map(str, WAYS[name].predicted)) if group == "all" else ""
            rows.append((name, group, len(of), *counts, predicted))
    programs.print_table(["way", "texts", "answers", "loops", "cut", "right", "predicted"], rows)


if __name__ == "__main__":
    main()
