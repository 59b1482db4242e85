"""Names of settings in tables: readings by different settings never share a name."""

from __future__ import annotations

from edgekv.evals.measured import setting_cells
from edgekv.evals.setting import Setting
from edgekv.evals.table import SETTING_HEADERS


def test_a_reading_with_an_archive_has_a_name_of_its_own():
    ways = ("off", "turn", "question")
    found = [Setting(focus=focus, archive=archive).name for focus in ways for archive in (None, "1GiB")]
    assert found == [
        *("default", "default, recalled", "default, in one turn", "default, recalled, in one turn"),
        *("focus: question", "focus: question, recalled"),
    ]
    assert Setting(policy="full", archive="1GiB").name == "full"


def test_a_row_tells_the_options_that_are_not_the_default():
    def told(**fields):
        return dict(zip(SETTING_HEADERS, setting_cells(Setting(**fields), 1000), strict=True))["options"]

    assert told() == told(budget=64, focus="What?") == ""
    assert told(reposition="always") == "reposition=always"
    assert told(n_sink=0, recent=0, evict_every=1) == "n_sink=0, recent=0, evict_every=1"
    assert told(policy="full", reposition="always", n_sink=0) == ""  # they mean nothing to a full cache
    assert told(policy="full", memory="1GiB") == "memory=1GiB"
