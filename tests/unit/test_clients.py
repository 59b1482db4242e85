"""Runtimes and sessions ask a loop by name for members that its engine and its conversations have."""

from __future__ import annotations

import inspect
import re

from edgekv import open_model, runtime, session, session_record
from edgekv.conversations import conversation, local_engine
from edgekv.loop import clients, loop_messages

ASKING = (open_model, runtime, session, session_record, clients)


def test_what_is_asked_for_by_name_exists():
    names = re.findall(r"\.(?:call|look)\(\s*\"(\w+)\"", "".join(map(inspect.getsource, ASKING)))
    assert len({*names}) > 20
    assert {*names} <= {*dir(conversation.Conversation), *dir(local_engine.LocalEngine)}


def test_the_calls_that_need_cells_exist():
    assert loop_messages.OF_IDLE <= loop_messages.WITH_CELLS <= set(dir(conversation.Conversation))
