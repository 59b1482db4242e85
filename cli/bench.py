"""`edgekv bench`: speed and memory of a model on this machine, against llama.cpp."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgekv.extras import needed
from edgekv.memory.process import physical_bytes
from edgekv.memory.sizes import MIB
from edgekv.models.catalog import find_model
from edgekv.options import default_threads

from .render import console, measuring_bar
from .shared_options import AsJson, NoRpc

if TYPE_CHECKING:  # the command imports it when it runs
    from edgekv.evals.speed_run import SpeedRun

COLUMNS = {  # figure -> head of its column, times what, and in which format
    "ttft_s": ("TTFT s", 1, ".2f"),
    "prefill_tok_per_s": ("prompt tok/s", 1, ".1f"),
    "decode_tok_per_s": ("generated tok/s", 1, ".1f"),
    "score_s": ("score ms", 1000, ".0f"),
    "compact_s": ("compact ms", 1000, ".0f"),
    "peak_bytes": ("peak MiB", 1 / MIB, ".0f"),
}
RATIOS = {"of_stock": "of llama.cpp's defaults", "of_alike": "of llama.cpp set alike"}  # key -> label of its row


def bench(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Path of a GGUF model, or a known name (`edgekv models`).")
    ] = None,
    policies: Annotated[
        list[str],
        typer.Option(
            "--policy",
            metavar="SPEC",
            help="Policy. default = the one edgekv chooses, full = evict nothing. Repeatable.",
        ),
    ] = ["default"],  # noqa: B006
    budgets: Annotated[
        list[int], typer.Option("--budget", help="Cells that each layer and head keeps; repeatable.")
    ] = [512],  # noqa: B006
    blocks: Annotated[list[int], typer.Option("--block", help="Tokens between two evictions; repeatable.")] = [128],  # noqa: B006
    lengths: Annotated[list[int], typer.Option("--length", help="Tokens of the prompt; repeatable.")] = [1000, 3000],  # noqa: B006
    generate: Annotated[int, typer.Option(help="Tokens generated after the prompt.")] = 32,
    repeats: Annotated[int, typer.Option(help="How often each case is measured.")] = 3,
    kv_type: Annotated[str, typer.Option(help="Type of cached keys and values: f16, q8_0, q4_0.")] = "f16",
    threads: Annotated[int | None, typer.Option(help="Threads, of llama.cpp too. Default: what each takes.")] = None,
    book: Annotated[Path | None, typer.Option(help="A long text in UTF-8 to read. Default: generated prose.")] = None,
    as_json: AsJson = False,
    rpc: NoRpc = None,
    pictures: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw pictures (PNG) into this folder.")] = None,
    claims: Annotated[
        bool,
        typer.Option(
            "--claims", help="Measure what README claims of the default model; exit status 1 = a claim does not hold."
        ),
    ] = False,
) -> None:
    """Compare speed and memory with llama.cpp on this machine. Ctrl-C prints what was measured so far."""
    if claims:
        from .show_claims import show_claims

        raise typer.Exit(show_claims(_machine(), threads, as_json=as_json))
    from edgekv.evals import prose
    from edgekv.evals.speed_run import SpeedRun, grouped, prompts

    if pictures is not None:
        needed("matplotlib", "eval")  # rather now than when everything is measured
        pictures.mkdir(parents=True, exist_ok=True)
    path = find_model(model)
    shared = {"model": str(path), "kv_type": kv_type, "n_generate": generate, "threads": threads}
    groups = grouped(policies=policies, budgets=budgets, blocks=blocks, lengths=lengths, **shared)
    run = SpeedRun(groups, repeats)
    with prose.vocabulary(model) as vocabulary:
        run.check()
        texts = prompts(vocabulary, None if book is None else prose.read_book(book), lengths)
    interrupted, products = _measure(run, texts, path, blocks)
    report = {"machine": _machine(), **run.as_dict(), "products": products}
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)
    if pictures is not None and report["cases"]:
        from edgekv.evals.speed_pictures import draw_all

        for picture in draw_all(report["cases"], pictures):
            console.print(str(picture), style="dim", markup=False, soft_wrap=True)
    if interrupted:
        raise KeyboardInterrupt
    if not report["cases"]:
        raise typer.Exit(1)


def _machine() -> dict[str, Any]:
    return {"system": platform.platform(), "processors": default_threads(), "memory_bytes": physical_bytes()}


def _measure(
    run: SpeedRun, texts: dict[int, str], model: Path, blocks: Sequence[int]
) -> tuple[bool, list[dict[str, Any]]]:
    """Measure everything; returns whether Ctrl-C ended it before, and the products."""
    from edgekv.evals.products import product_speeds

    products: list[dict[str, Any]] = []
    try:
        with measuring_bar([case.n_tokens for _, case in run.todo]) as bar:
            for case in run.steps(texts):
                bar(case.n_tokens, case.name)
        for block in dict.fromkeys(blocks if run.samples else []):
            speeds = product_speeds(model, block)
            products += [{**asdict(speed), "share_of_limit": speed.share_of_limit} for speed in speeds]
    except KeyboardInterrupt:
        return True, products
    return False, products


def _print(report: dict[str, Any]) -> None:
    sections = dict.fromkeys((case["n_tokens"], case["block"]) for case in report["cases"])
    for n_tokens, block in sections:
        cases = [case for case in report["cases"] if (case["n_tokens"], case["block"]) == (n_tokens, block)]
        print(f"{cases[0]['prompt_tokens']:,} tokens, block {block}", *_lines(cases), sep="\n", end="\n\n")
    if sections:
        print("medians and ranges of all repeats; of llama.cpp: in the same repeat")
    for case in report["left_out"]:
        print(f"left out: {case['name']} with {case['n_tokens']:,} tokens, block {case['block']}: {case['reason']}")
    if report["products"]:
        print("", *_product_lines(report["products"]), sep="\n")


def _product_lines(products: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A table of the speeds of products."""
    yield "products of a block with weights, one thread, G operations/s of processor time"
    yield f"  {'type':8}{'weights':>8}{'matrix':>16}{'block':>7}{'reached':>9}{'limit':>8}{'share':>7}  by"
    for product in products:
        reached, limit, share = (product[key] for key in ("operations_per_s", "limit_per_s", "share_of_limit"))
        matrix = f"{product['depth']:,} x {product['n_rows']:,}"
        compared = f"{limit / 1e9:8.1f}{share:7.2f}" if limit else ""
        yield (
            f"  {product['type']:8}{product['weights']:8.0%}{matrix:>16}{product['block']:7,}{reached / 1e9:9.1f}"
            f"{compared:15}  {product['instructions'] or 'ggml'}"
        )
    yield "limit: a loop of the instructions that multiply bytes, on registers alone, measured in turn with the product"


def _lines(cases: list[dict[str, Any]]) -> Iterator[str]:
    """A table of cases of one length and block. Names of policies may be long, so each has a line to itself."""
    rows = [["", *(column.split()[i] for column, _, _ in COLUMNS.values())] for i in range(2)]
    for case in cases:
        rows.append([case["name"]])
        rows += _rows("", [_spread(case[key], scale, form) for key, (_, scale, form) in COLUMNS.items()])
        for key, label in RATIOS.items():
            if case[key]:
                rows += _rows(label, [_spread(case[key].get(name), 1, ".2f", "x") for name in COLUMNS])
    widths = [max(map(len, column)) for column in zip(*(row for row in rows if len(row) > 1), strict=True)]
    for label, *cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=False))
        yield "  ".join([label.ljust(widths[0]) if cells else label, *padded]).rstrip()


def _rows(label: str, spreads: list[tuple[str, str]]) -> list[list[str]]:
    medians, ranges = zip(*spreads, strict=True)
    return [[f"  {label}", *medians], ["", *ranges]]


def _spread(spread: dict[str, float] | None, scale: float, form: str, sign: str = "") -> tuple[str, str]:
    """Return a median and its range as two texts, both "" if nothing was measured."""
    if spread is None or spread["max"] == 0:
        return "", ""
    median, low, high = (format(spread[name] * scale, form) for name in ("median", "min", "max"))
    return f"{sign}{median}", f"{low}..{high}"
