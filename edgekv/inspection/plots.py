"""Plots of the kept tokens and keys, as PNG files. matplotlib comes with the extra `eval`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekv.extras import needed

from .kept_tokens import Kept
from .keys import KeyStudy
from .observe import Observation

DPI = 150


def save_pictures(found: Observation, folder: str | os.PathLike[str]) -> list[Path]:
    """Write `kept.png`, and if keys were studied `keys-L-H.png` for each head and `log-det.png`; returns the paths.

    Makes the folder, and replaces pictures that are there. Raises ConfigError if matplotlib is not installed.
    """
    needed("matplotlib", "eval")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"kept.png": _map(found.kept)}
    for study in found.keys:
        figures[f"keys-{study.layer}-{study.head}.png"] = _keys(study)
    if found.keys:
        figures["log-det.png"] = _log_det(found.keys)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=DPI)
    return [folder / name for name in figures]


def _map(kept: Kept) -> Any:
    """Plot positions by (layer, head); kept ones are dark, as the legend says."""
    figure, axes = _figure(9, 5)
    axes.imshow(kept.mask, aspect="auto", cmap="Greys", interpolation="nearest", vmin=0, vmax=1)
    firsts = [i for i, (_, head) in enumerate(kept.heads) if head == 0]
    axes.set_yticks(firsts, [kept.heads[i][0] for i in firsts], fontsize=6)
    axes.set(xlabel="position", ylabel="layer; a line for each head", title="Positions that each head kept")
    patch = needed("matplotlib.patches", "eval").Patch
    shades = (("black", f"kept ({kept.mask.mean():.0%})"), ("white", "evicted"))
    figure.legend(
        handles=[patch(fc=c, ec="grey", label=label) for c, label in shades], loc="outside upper right", ncol=2
    )
    return figure


def _keys(study: KeyStudy) -> Any:
    """Plot kept and evicted keys along the two axes on which all keys vary most."""
    figure, axes = _figure(5, 5)
    for label, which, colour in (("evicted", ~study.kept, "tab:orange"), ("kept", study.kept, "tab:blue")):
        x, y = study.points[which].T
        axes.scatter(x, y, s=6, c=colour, alpha=0.6, linewidths=0, label=f"{label} ({len(x):,})")
    first, second = (f"{100 * share:.0f} % of the variance" for share in study.explained)
    axes.set(xlabel=first, ylabel=second, title=f"Keys of layer {study.layer}, head {study.head}")
    axes.legend()
    return figure


def _log_det(studies: Sequence[KeyStudy]) -> Any:
    """Plot the volume of the keys that each head kept, beside random sets and all keys; finite values only."""
    figure, axes = _figure(6, 4)
    x = np.arange(len(studies))
    each = [study.volumes for study in studies]
    axes.errorbar(x, [v.random for v in each], [v.deviation for v in each], fmt="_", c="grey", label="random sets")
    axes.plot(x, [v.kept for v in each], "o", c="tab:blue", label="kept")
    axes.plot(x, [v.full for v in each], "^", c="tab:orange", label="all keys")
    axes.set_xticks(x, [f"{study.layer}, {study.head}" for study in studies])
    axes.set(xlabel="layer, head", ylabel="log det of the Gram matrix", title="Volume that keys span")
    axes.legend()
    return figure


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """Make a figure of this size in inches, without a window or any state of pyplot's; returns it and its axes."""
    figure = needed("matplotlib.figure", "eval").Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()
