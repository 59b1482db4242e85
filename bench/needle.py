"""The needle check: is one sentence of a long text still known after the text went through a small cache?

A sample is real prose with one sentence planted at a random depth, which names a random five-digit number; the
question comes after the text, and the answer counts where it holds the digits. Samples are the same for every
setting. `--policy full` stands for a budget that holds the whole prompt, where nothing is evicted: what the model
itself can do.

    python bench/needle.py --book novel.txt --policy full --policy keydiff --policy "keydiff(kernel=15)" --recent 0
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import common

import edgekv
from edgekv.evals import needle, prose
from edgekv.evals.document import Document
from edgekv.sampler import GREEDY

FULL = "full"


def answer(runtime: edgekv.Runtime, sample: Document, folder: str) -> str:
    """The reply to the question after the sample's text, in a session of its own."""
    path = Path(folder, "text.txt")
    path.write_text(sample.text, encoding="utf-8")
    (question,) = sample.questions
    with runtime.session() as session:
        reply = session.ask(
            question.text, files=[path], instruction="", max_tokens=question.max_tokens, sampling=GREEDY
        )
        return "".join(reply)


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--policy", action="append", help=f"policy, or {FULL!r}; repeatable (full, keydiff)")
    parser.add_argument("--budget", type=int, action="append", help="cells; repeatable (512)")
    parser.add_argument(
        "--recent", type=int, action="append", help="newest tokens never evicted; repeatable (32, or 0)"
    )
    parser.add_argument("--focus", action="append", help="policy that scores by the question as a probe; repeatable")
    parser.add_argument("--probe-tokens", type=int, default=64, help="longest probe")
    parser.add_argument("--tokens", type=int, default=1000, help="prose in a sample")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first sample")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--reposition", default="auto", help="when kept keys are turned: auto, always, never")
    parser.add_argument("--show", action="store_true", help="print every answer")
    options = parser.parse_args()

    book = prose.read_book(options.book)
    seeds = range(options.seed, options.seed + options.samples)
    with prose.vocabulary(options.model) as model:
        samples = [needle.document(model, book, options.tokens, seed) for seed in seeds]

    sizes = [options.budget or [512], options.recent or [None]]
    settings: list[tuple[str, str | None, int, int]] = []
    for policy in options.policy or ([] if options.focus else [FULL, "keydiff"]):
        if policy == FULL:
            settings.append((policy, None, options.tokens + 1024, 0))
        else:
            settings += itertools.product([policy], [None], *sizes)
    settings += itertools.product(["keydiff"], options.focus or [], *sizes)

    results = []
    for policy, focus, budget, recent in settings:
        found = []
        with (
            tempfile.TemporaryDirectory() as folder,
            edgekv.Runtime(
                options.model,
                memory="100%",
                repack=False,
                policy="sink" if policy == FULL else policy,
                budget=budget,
                block=options.block,
                kv_type=options.kv_type,
                reposition=options.reposition,
                threads=options.threads,
                recent=recent,
                focus=focus is not None,
                **({"focus_policy": focus, "probe_tokens": options.probe_tokens} if focus else {}),
            ) as runtime,
        ):
            for sample in samples:
                reply = answer(runtime, sample, folder)
                (question,) = sample.questions
                found.append(question.score(reply) == 1)
                if options.show:
                    (digits,) = question.answers
                    print(f"  {digits} at {sample.text.index(digits) / len(sample.text):.0%}: {reply!r}", flush=True)
        how = f"focus {focus}" if focus else policy
        name = policy if policy == FULL else f"{how}, {budget} cells, recent={recent}"
        print(f"{name}: found {sum(found)}/{len(found)}", flush=True)
        results.append({"policy": policy, "focus": focus, "budget": budget, "recent": recent, "found": found})
    common.write_json(options.json, {"seeds": list(seeds), "tokens": options.tokens, "settings": results})


if __name__ == "__main__":
    main()
