"""Archives of rows on a device: as many rows at once as its graphs hold come to the host, and go back.

Here ggml's CPU backend computes these graphs. Each test of archives holds as it does for the host, and a session leaves
the same bytes. `pytest --device rpc` runs the other tests of archives with rows on a device.
"""

from __future__ import annotations

import pytest
from archived_kinds import ARCHIVED, KINDS, each_kind
from small import words
from test_archive import (  # noqa: F401 (they are tests of this module as well)
    file,
    open_archived,
    test_a_damaged_file_leaves_the_cells_as_they_were,
    test_a_damaged_value_gives_up_what_an_earlier_recall_filled,
    test_a_recall_in_steps_brings_what_one_brings,
    test_recalled_rows_are_to_the_bit_those_that_were_evicted,
    test_what_is_recalled_is_what_the_reference_finds_best,
)
from test_turned_archive import (  # noqa: F401 (likewise)
    test_a_hot_key_whose_row_cannot_be_read_is_turned_as_the_cell_has_it,
    test_keys_are_turned_once_from_what_was_archived,
)

from edgekv.generation.sampler import GREEDY

STAGED = {name: options for name, options in KINDS.items() if name != "slots"} | {
    "q4_0": {"kv_type": "q4_0"},
    "q8_0 turned, heads apart": {"kv_type": "q8_0", "reposition": "always", "policy": "keydiff+ada"},
    "a full archive, turned": {"archive": 1 << 18, "reposition": "always"},
}


@pytest.fixture(autouse=True)
def staged(request, monkeypatch):
    """Rows that graphs copy, unless a test says how."""
    if "staging" not in getattr(getattr(request.node, "callspec", None), "params", {}):
        monkeypatch.setenv("EDGEKV_STAGING", "graphs")


def lived(open_runtime, how, monkeypatch, **options):
    """Return the replies of a session and the bytes of its cells, after recalls, rewinds and another session."""
    monkeypatch.setenv("EDGEKV_STAGING", how)
    found = []
    with open_runtime(**ARCHIVED | {"swap_memory": 0} | options) as rt, rt.session() as other:

        def chat(session, question):
            given = {"max_tokens": 20, "sampling": GREEDY, "allow_loops": True, "logprobs": 3}
            found.append(
                [(token.id, token.logprob) for piece in session.chat(question, **given) for token in piece.tokens]
            )
            found.append(session._conversation.state.block_loop.cache.snapshot().data.tobytes())
            assert session.stats.recalled_cells > 0

        with rt.session(history=True, checkpoint_bytes=0) as session:
            session.read(words(150))
            chat(session, "What was it?")
            n_past = session.n_past
            chat(session, "And then?")
            session.rewind(n_past)
            chat(session, "What else?")
            other.read(words(3))
            chat(session, "Is that all?")
    return found


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("options", each_kind(STAGED))
@pytest.mark.parametrize("staging", ["graphs", "copies"])
def test_a_session_leaves_what_it_leaves_on_the_host(open_runtime, monkeypatch, staging, options):
    if staging == "graphs" and "reposition" in options:
        pytest.skip("evictions turn keys by graphs then, which round otherwise")
    expected = lived(open_runtime, "auto", monkeypatch, **options)
    assert lived(open_runtime, staging, monkeypatch, **options) == expected
