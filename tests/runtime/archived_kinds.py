"""Runtimes with an archive, of each kind that keeps its rows in another way."""

from __future__ import annotations

import pytest

ARCHIVED = {"policy": "keydiff", "archive": "64MiB", "reposition": "never", "allow_beyond_trained": True}
KINDS = {
    "plain": {},
    "turned": {"reposition": "always"},
    "q8_0": {"kv_type": "q8_0"},
    "heads apart": {"policy": "keydiff+ada"},
    "slots": {"parallel": 2},
}


def each_kind(kinds, names=False):
    """Parameters of a test with all kinds, by name: their options, or with `names` the names themselves."""

    def marks(options):
        return pytest.mark.no_device if "parallel" in options else ()

    return [pytest.param(name if names else it, id=name, marks=marks(it)) for name, it in kinds.items()]
