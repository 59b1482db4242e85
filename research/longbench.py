"""Makes a file of questions, as `edgekv eval qa` reads it, of LongBench's files (arXiv:2308.14508).

Two forms are read. LongBench's own has an object on each line, with "context", "input" and "answers". MiniLongBench's
(arXiv:2505.19959, 237 of its prompts) is one object of objects, with "origin_prompt" and "gold"; what follows a
prompt's last empty line is the question. Items whose answer is a choice among classes are left out.

A text of more than --tokens tokens loses its middle, as in LongBench, so that it fits the model's trained context. The
data is not part of edgekv.

    python research/longbench.py MiniLongBench_qasper.json MiniLongBench_hotpotqa.json --tokens 3500 \
        --out questions.jsonl
    edgekv eval qa --data questions.jsonl --focus turn --policy full --policy keydiff --budget 1024
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from edgekv.binding.model import Model
from edgekv.evals import prose

Item = tuple[str, str, object]  # text, question, answers


def items(path: Path, question: str | None) -> Iterator[Item]:
    """The items of a file, with one question for all of them if it is given."""
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:  # more than one object: lines
        with path.open(encoding="utf-8") as lines:  # str.splitlines would cut at U+2028, too
            for item in map(json.loads, lines):
                yield item["context"], question or item["input"], item["answers"]
        return
    for item in whole.values():
        document, _, asked = item["origin_prompt"].rpartition("\n\n")
        yield document, question or asked, item["gold"]


def without_middle(model: Model, text: str, n_tokens: int) -> str:
    """Return the first and the last half of n_tokens of a text, or the whole text if it has no more."""
    tokens = model.tokenize(text)
    if len(tokens) <= n_tokens:
        return text
    half = n_tokens // 2
    return "".join(model.text(tokens[:half])) + "".join(model.text(tokens[-half:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--model", help="whose tokens count (default: the default model)")
    parser.add_argument("--tokens", type=int, default=7500, help="of a text, at most")
    parser.add_argument("--each", type=int, help="take so many items of each file, the first ones")
    parser.add_argument("--question", help="asked of every text, in place of its own")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()

    with prose.vocabulary(options.model) as model, options.out.open("w", encoding="utf-8") as out:
        for path in options.files:
            usable = [item for item in items(path, options.question) if isinstance(item[2], list) and item[1].strip()]
            for text, question, answers in usable[: options.each]:
                shortened = without_middle(model, text, options.tokens)
                out.write(json.dumps({"documents": [shortened], "question": question, "answers": answers}) + "\n")
            print(f"{path.name}: {len(usable[: options.each])}")


if __name__ == "__main__":
    main()
