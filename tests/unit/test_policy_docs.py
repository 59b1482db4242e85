"""docs/policies.md says what the code does: its tables and its examples. Specs of all pages can be spelt."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from edgekv.policies import POLICIES, WRAPPERS, parse_policy

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "policies.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^#{2,3} (.+?)\n(.*?)(?=^#{2,3} |\Z)", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", [*POLICIES, *WRAPPERS])
def test_options_are_documented_with_their_defaults(name):
    kind = (POLICIES | WRAPPERS)[name]
    rows = re.findall(r"^\| `(\w+)`(?: or `(\w+)`)? \| (.+?) \| .+ \|$", SECTIONS[name], re.MULTILINE)
    documented = [(option, alias or None, default.strip("`")) for option, alias, default in rows]
    assert documented == [
        (field.name, field.metadata["alias"], spelt(field.default))
        for field in kind.options()
        if not field.metadata["of_paper"]
    ]
    paper = kind.paper.rpartition("arXiv:")[2]
    assert paper in TEXT or paper == "control"


def spelt(default):
    return {"True": "on", "False": "off", "None": "none"}.get(str(default), str(default))


def test_options_that_only_papers_set_are_documented_with_papers():
    text = (DOCS.parent / "bench" / "papers" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+?) \| .+ \|$", text, re.MULTILINE)
    assert [(policy, name, default.strip("`")) for policy, name, default in rows] == [
        (policy, field.name, spelt(field.default))
        for policy, kind in (POLICIES | WRAPPERS).items()
        for field in kind.options()
        if field.metadata["of_paper"]
    ]


def test_every_spec_can_be_spelt_so():
    specs = [
        spec
        for page in sorted(DOCS.glob("*.md"))
        for spec in re.findall(r'(?:policy=|policy |select\(|score\()"([^"]+)"', page.read_text(encoding="utf-8"))
    ]
    assert len(specs) >= 8
    for spec in specs:
        if not spec.startswith(("full", "onnx:", "mine")):  # a name of the benchmark, and scorers of a user
            parse_policy(spec)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_examples_run(backend):
    """All of the section, one after the other; what they leave behind is what the text says."""
    blocks = re.findall(r"(?:^    .+\n|^\n(?=    ))+", SECTIONS["On plain arrays"], re.MULTILINE)
    code = "\n".join(map(textwrap.dedent, blocks))
    code = re.sub(" +#.*", "", code)
    calls = re.compile(r"(scoring\.(?:select|score|budgets)\(.*)\)$", re.MULTILINE)
    code = calls.sub(rf"\1, backend={backend!r})", code)
    assert code.count("backend=") >= 6
    names = {}
    exec(code, names)
    assert [len(cells) for cells in names["kept"]] == [64, 64]
    assert [len(gathered) for gathered in names["carried"]] == [64, 64]
    assert names["gathered"].shape == (2, 300)
    assert sum(names["shared"]) == 2 * 64
    assert sum(names["falling"]) == 30 * 64
