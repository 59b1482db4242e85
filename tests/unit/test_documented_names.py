"""Names and import paths that the documentation gives: they stay where users found them, wherever code moves."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# what the pages name
NAMES = [
    "edgekv.ConfigError",
    "edgekv.EdgeKVError",
    "edgekv.Infill",
    "edgekv.Options",
    "edgekv.Piece",
    "edgekv.Progress",
    "edgekv.Runtime",
    "edgekv.Sampling",
    "edgekv.TokenLogprob",
    "edgekv.WorkerError",
    "edgekv.batch.batch.Batch",
    "edgekv.cli.main.main",
    "edgekv.config",
    "edgekv.devices.devices",
    "edgekv.evals.grid.Grid",
    "edgekv.evals.needle",
    "edgekv.evals.perplexity_gap",
    "edgekv.evals.prose",
    "edgekv.evals.ruler",
    "edgekv.evals.setting",
    "edgekv.evals.speed_run.SpeedRun",
    "edgekv.evals.speed_run.grouped",
    "edgekv.evals.tokens",
    "edgekv.hub.download",
    "edgekv.hub.look_up",
    "edgekv.inspection.observe",
    "edgekv.inspection.render_page",
    "edgekv.testing.models.families",
    "edgekv.testing.models.shapes",
    "edgekv.plan",
    "edgekv.policies.Policy",
    "edgekv.scoring.budgets",
    "edgekv.policies.register",
    "edgekv.scoring.score",
    "edgekv.scoring.select",
    "edgekv.server.Settings",
    "edgekv.server.app",
    "edgekv.survey",
    "edgekv.testing.ceiling.OverCeilingError",
    "edgekv.testing.fresh_process.FreshProcessError",
    "edgekv.warmup.register_warmup",
    "edgekv.warmup.reserve",
    "edgekv.worker.frozen.serve_if_worker",
]
METADATA = {
    "edgekv.h",
    "edgekv.window",
    "edgekv.weights",
    "edgekv.protect_window",
    "edgekv.runtime",
}  # no Python names


def resolve(name):
    """Return the object that a dotted name stands for, as `import` and attributes find it."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        found = getattr(found, part, None) or importlib.import_module(".".join(parts[:i]))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_documented_name_is_there(name):
    if name.startswith("edgekv.evals"):
        pytest.importorskip("scipy")
    assert resolve(name) is not None


def documented():
    """Dotted names and imports of edgekv in the documentation."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        yield from re.findall(r"(?<![\w/.-])edgekv(?:\.[A-Za-z_]+)+", text)
        for module, names in re.findall(r"from (edgekv[\w.]*) import ([\w, ]+)", text):
            yield from (f"{module}.{name.strip()}" for name in names.split(","))


def test_the_list_is_whole():
    """Every name that a page mentions is in the list, or leads to a name that is."""
    missing = {
        name
        for name in documented()
        if name not in METADATA and not any(f"{known}.".startswith(f"{name}.") for known in NAMES)
    }
    assert not missing


FOLDERS = ("edgekv", "cli", "models", "native", "tests", "bench", "scripts", "examples")
PLACEHOLDERS = ("NAME", "NNNN")
PAGES = [
    ROOT / name
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "native/README.md", "bench/papers/README.md")
]
PAGES += [
    page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "results"
]  # those are about earlier commits


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    named = re.findall(rf"(?<![\w/.-])(?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:py|cpp|h|md|sh)\b", text)
    missing = [name for name in named if not (ROOT / name).exists() and not any(word in name for word in PLACEHOLDERS)]
    assert not missing


def test_programs_that_results_name_are_there_or_told_to_be_gone():
    text = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Programs that are gone")
    gone = set(re.findall(r"`(\w+\.py)`", section.partition("## ")[0]))
    named = set(re.findall(r"\b((?:bench|research|scripts|tests)/[\w/]+\.(?:py|sh))\b", text))
    assert {name for name in named if not (ROOT / name).exists()} == {
        name for name in named if name.rpartition("/")[2] in gone
    }
    assert {name.rpartition("/")[2] for name in named} >= gone


@pytest.mark.parametrize("package", ["edgekv", "cli", "models"])
def test_modules_that_a_package_lists_are_there(package):
    for file in sorted((ROOT / package).rglob("__init__.py")):
        listed = re.findall(r"\b(\w+\.py)\b", ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "")
        assert [name for name in listed if not (file.parent / name).exists()] == [], file


def test_no_two_modules_have_one_name():
    """But for packages and programs."""
    modules = [file for package in ("edgekv", "cli", "models") for file in (ROOT / package).rglob("*.py")]
    stems = Counter(file.stem for file in modules)
    assert [stem for stem, n in stems.items() if n > 1 and stem not in ("__init__", "__main__")] == []
