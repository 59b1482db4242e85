"""The page of HTML that shows which tokens were kept. It needs no other file."""

from __future__ import annotations

import functools
from pathlib import Path

import jinja2

from edgekv.conversations.coverage import ARCHIVED, N_LEVELS

from .kept_tokens import runs
from .keys import COLUMNS
from .observe import Observation


def render_page(found: Observation) -> str:
    """Render the page. All content is shown as text."""
    kept = found.kept
    tokens = zip(kept.pieces, kept.levels.tolist(), kept.counts.tolist(), strict=True)
    rows = [
        {"name": f"layer {layer}, head {head}", "y": i + 0.5, "n_kept": int(row.sum()), "runs": runs(row)}
        for i, ((layer, head), row) in enumerate(zip(kept.heads, kept.mask, strict=True))
    ]
    return _template().render(
        found=found,
        tokens=tokens,
        rows=rows,
        n_tokens=len(kept.pieces),
        n_levels=N_LEVELS,
        archived_level=ARCHIVED if found.plan.archive != "off" else None,
        columns=COLUMNS,
    )


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("page.html")
