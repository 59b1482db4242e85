"""docs/policies.md says what the code does: its tables, its specs, its examples."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from edgekv.policies import POLICIES, WRAPPERS, parse_policy

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text()
SECTIONS = dict(re.findall(r"^#{2,3} (.+?)\n(.*?)(?=^#{2,3} |\Z)", TEXT, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", [*POLICIES, *WRAPPERS])
def test_options_are_documented_with_their_defaults(name):
    kind = (POLICIES | WRAPPERS)[name]
    rows = re.findall(r"^\| `(\w+)`(?: or `(\w+)`)? \| (.+?) \| .+ \|$", SECTIONS[name], re.MULTILINE)
    spelt = {"True": "on", "False": "off", "None": "none"}
    documented = [(option, alias or None, default.strip("`")) for option, alias, default in rows]
    assert documented == [
        (field.name, field.metadata["alias"], spelt.get(str(field.default), str(field.default)))
        for field in kind.options()
    ]
    paper = kind.paper.rpartition("arXiv:")[2]
    assert paper in TEXT or paper == "control"


def test_every_spec_can_be_spelt_so():
    specs = re.findall(r'(?:policy=|--policy |select\(|score\()"([^"]+)"', TEXT)
    assert len(specs) >= 6
    for spec in specs:
        if spec != "full":  # a name that only the benchmark knows
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
