"""Speed of replies with drafts (`prompt_lookup`) over the same replies without.

Claim (docs/python.md): drafts never cost much, and gain where a reply repeats its prompt.

Both runtimes are open at once and take turns, reply by reply. What they say must be the same.

    python bench/drafts.py --book novel.txt --pairs 3
"""

from __future__ import annotations

import sys

import edgekv
from edgekv.evals import prose
from edgekv.generation.sampler import GREEDY
from edgekv.testing import programs

CODE = """class Tree:
    def __init__(self):
        self.root = None
        self.size = 0

    def insert(self, key, value):
        node, parent = self.root, None
        while node is not None and node.key != key:
            node, parent = (node.left if key < node.key else node.right), node
        if node is not None:
            node.value = value
            return
        self.size += 1
        self.attach(parent, Node(key, value))

    def find(self, key):
        node = self.root
        while node is not None and node.key != key:
            node = node.left if key < node.key else node.right
        return None if node is None else node.value
"""

# Predicted before anything was measured, for the default model and a model of 1.5B. The others were not.
PREDICTED = {"changes code": ", 1.7", "answers": "1.0, 1.1", "explains": "0.98, 0.98", "tells a story": "0.98, 0.98"}


def prompts(text: str) -> dict[str, str]:
    """Return what to say, by what the reply does."""
    return {
        "changes code": f"Rename the class to SearchTree, and print the whole code:\n\n{CODE}",
        "answers": f"{text}\n\nWho is speaking in this text, and about what?",
        "summarises": f"{text}\n\nSummarise this text in five sentences.",
        "copies": f"{text}\n\nCopy the first paragraph of this text word for word.",
        "explains": "What is the difference between a compiler and an interpreter?",
        "tells a story": "Write a short story about a lighthouse keeper.",
        "writes code": "Write a Python class for a binary search tree with insert, delete and search.",
    }


def seconds_a_token(runtime: edgekv.Runtime, prompt: str, n_tokens: int) -> tuple[float, str, edgekv.Stats]:
    """Return the time of a generated token, the reply, and what it took."""
    with runtime.session() as session:
        reply = "".join(session.chat(prompt, max_tokens=n_tokens, sampling=GREEDY, allow_loops=True))
        return session.stats.decode_s / session.stats.generated_tokens, reply, session.stats


def main() -> None:
    """Print a row for each kind of reply."""
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--say", type=int, default=160, help="tokens of a reply")
    options = parser.parse_args()
    with prose.vocabulary(options.model) as model:
        text = prose.text_of(model, prose.first_tokens(model, prose.read_book(options.book), 1000))
    settings = {"memory": "1TiB", "budget": 2048, "focus": False, "threads": options.threads}
    rows, figures = [], {}
    with (
        edgekv.Runtime(options.model, prompt_lookup="on", **settings) as drafting,
        edgekv.Runtime(options.model, prompt_lookup="off", **settings) as plain,
    ):
        for name, prompt in prompts(text).items():
            ratios = []
            for _ in range(options.pairs):
                with_s, said, stats = seconds_a_token(drafting, prompt, options.say)
                without_s, same, _ = seconds_a_token(plain, prompt, options.say)
                ratios.append(without_s / with_s)
                if said != same:
                    sys.exit(f"with drafts another reply was said: {said!r}, {same!r}")
            figures[name] = programs.median(ratios)
            accepted = f"{stats.accepted_tokens} of {stats.drafted_tokens}"
            rows.append((name, PREDICTED.get(name, ""), f"{figures[name]:.2f}", accepted, stats.generated_tokens))
    programs.print_table(["a reply that", "predicted", "with drafts over without", "accepted", "tokens"], rows)
    programs.write_json(options.json, figures)


if __name__ == "__main__":
    main()
