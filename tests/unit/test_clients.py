"""Runtimes and sessions ask a loop by name for members that its engine and its conversations have."""

from __future__ import annotations

import inspect
import re

from edgekv import held_conversation, moving_ceiling, open_model, runtime, session, session_record, session_state
from edgekv.conversations import conversation, local_engine
from edgekv.loop import engine, loop_messages

ASKING = (open_model, moving_ceiling, runtime, session, session_record, session_state, held_conversation, engine)


def test_what_is_asked_for_by_name_exists():
    names = re.findall(r"\.(?:_?call|_?look|_ask)\((?:number, )?\s*\"(\w+)\"", "".join(map(inspect.getsource, ASKING)))
    assert len({*names}) > 20
    assert {*names} <= {*dir(conversation.Conversation), *dir(local_engine.LocalEngine)}


def test_the_calls_that_need_cells_exist():
    assert loop_messages.OF_IDLE <= loop_messages.WITH_CELLS <= set(dir(conversation.Conversation))
