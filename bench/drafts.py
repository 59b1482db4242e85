"""Speed of replies with drafts (`prompt_lookup`) over the same replies without.

Claim (docs/sampling.md): a copy is said at least twice as fast with drafts, and no reply slower than 0.98 of one
without.

Both runtimes are open at once and take turns, reply by reply, so that both meet what else the machine does. What they
say must be the same. Ratios are of the clock and of the loop's processor time; the medians of the pairs are printed.
Predictions stand beside them; they were written down before.

    python bench/drafts.py --book novel.txt --threads 1
    python bench/drafts.py --book novel.txt --threads 1 --model QWEN --pairs 1 --kind copies
"""

from __future__ import annotations

import inspect
import json
import sys
import time

import edgekv
from edgekv.cells import token_blocks
from edgekv.evals import prose
from edgekv.generation.sampler import GREEDY
from edgekv.testing import programs

CODE = '''def loops(tokens):
    """Return the distance at which the tokens end in three equal rounds, or 0."""
    for distance in range(1, len(tokens) // 3 + 1):
        first = tokens[-3 * distance : -2 * distance]
        second = tokens[-2 * distance : -distance]
        third = tokens[-distance:]
        if first == second == third:
            return distance
    return 0


def cut(tokens, distance):
    """Return the tokens with one round of a loop in place of three."""
    if distance == 0:
        return tokens
    return tokens[: -2 * distance]


def print_rounds(tokens, distance):
    """Print each of the last three rounds of tokens in a line."""
    for i in range(3, 0, -1):
        begin = len(tokens) - i * distance
        print(tokens[begin : begin + distance])
'''
DOCUMENT = """Order 1187 was placed by Agneta Holmberg, Fiskaregatan 3, Kalmar. Its positions:
twelve brass hinges with ball tip, article BH-2201, from the store in Vaxjo;
three litres of boiled linseed oil, article OIL-77-3, from the store in Kalmar;
one oak worktop of 240 by 65 centimetres, article OAK-240-65, from the sawmill in Nybro;
two hundred slotted screws of five millimetres, article SC-5-60, from the store in Vaxjo."""
AS_JSON = 'Write each position as JSON with the keys "text" and "article" and "from", and copy the words'

SENTENCES = 'Write this text as a JSON list of objects with the keys "sentence" and "speaker", and copy each sentence'

# Of the clock, predicted before anything was measured: the default model, a model of 1.5B. Those of code that is edited
# and of JSON of prose were computed from one reply and the cost of decodes by their tokens.
PREDICTED = {
    "copies": "1.8, 2.7",
    "renames a variable": "1.8, 2.2",
    "writes JSON": "1.8, 1.8",
    "edits code": "3.0, 3.7",
    "writes JSON of prose": "1.8, 2.0",
    "quotes what was evicted": "2.0, 2.4",
    "summarises": "1.3, 1.2",
    "explains": "1.0, 1.0",
    "tells a story": "1.1, 1.05",
}


EVICTED = "quotes what was evicted"  # a grammar has it say the beginning of the text that was read before
FAR = 20_000  # tokens of that text


def prompts(text: str) -> dict[str, str]:
    """Return what to say, by what the reply does."""
    code = inspect.getsource(token_blocks)
    return {
        "copies": f"{text}\n\nCopy the first paragraph of this text word for word.",
        "renames a variable": f"Rename `distance` to `period` everywhere, and print the whole code:\n\n{CODE}",
        "writes JSON": f"{DOCUMENT}\n\n{AS_JSON}.",
        "edits code": f"Rename `blocks` to `pieces`, and print the whole code:\n\n{code}",
        "writes JSON of prose": f"{text[:1500]}\n\n{SENTENCES}.",
        EVICTED: "Say the beginning of the text.",
        "summarises": f"{text}\n\nSummarise this text in five sentences.",
        "explains": "What is the difference between a compiler and an interpreter?",
        "tells a story": "Write a short story about a lighthouse keeper.",
    }


def reply(
    runtime: edgekv.Runtime, prompt: str, n_tokens: int, before: str = ""
) -> tuple[str, edgekv.Stats, float, float]:
    """Return a reply, what it took, and the seconds of a token by the clock and of the processor.

    The processor's begin with the first piece, as the clock's do.

    before: is read first, and its beginning said
    """
    with runtime.session(history=True, checkpoint_bytes=0) as session:
        grammar = None
        if before:
            session.read(before)
            grammar = f"root ::= {json.dumps(before[:600], ensure_ascii=False)}"
        pieces = session.chat(prompt, max_tokens=n_tokens, sampling=GREEDY, allow_loops=True, grammar=grammar)
        said, started = next(pieces), time.process_time()
        said += "".join(pieces)
        busy, stats = time.process_time() - started, session.stats
        return said, stats, stats.decode_s / stats.generated_tokens, busy / stats.generated_tokens


def main() -> None:
    """Print a row for each kind of reply."""
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--say", type=int, default=200, help="most tokens of a reply")
    parser.add_argument("--kind", action="append", choices=PREDICTED, help="repeatable; default: all")
    options = parser.parse_args()
    with prose.vocabulary(options.model) as model:
        book = prose.read_book(options.book)
        text, far = (prose.text_of(model, prose.first_tokens(model, book, n)) for n in (1000, FAR))
    settings = {"memory": "1TiB", "budget": 2048, "focus": False, "archive": "off", "threads": options.threads}
    rows, figures = [], {}
    with (
        edgekv.Runtime(options.model, prompt_lookup="on", **settings) as drafting,
        edgekv.Runtime(options.model, prompt_lookup="off", **settings) as plain,
    ):
        for kind, prompt in prompts(text).items():
            if options.kind and kind not in options.kind:
                continue
            ratios: list[tuple[float, float]] = []
            for _ in range(options.pairs):
                before = far if kind == EVICTED else ""
                said, stats, *ours = reply(drafting, prompt, options.say, before)
                same, _, *others = reply(plain, prompt, options.say, before)
                if said != same:
                    sys.exit(f"with drafts another reply was said: {said!r}, {same!r}")
                ratios.append((others[0] / ours[0], others[1] / ours[1]))
            clock, processor = (programs.median(column) for column in zip(*ratios, strict=True))
            figures[kind] = {"clock": clock, "processor": processor}
            accepted = f"{stats.accepted_tokens} of {stats.drafted_tokens}"
            rows.append((kind, PREDICTED[kind], f"{clock:.2f}", f"{processor:.2f}", accepted, stats.generated_tokens))
    header = ["a reply that", "predicted", "clock", "processor", "accepted", "tokens"]
    programs.print_table(header, rows)
    programs.write_json(options.json, figures)


if __name__ == "__main__":
    main()
