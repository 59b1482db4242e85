"""Clients ask for what the conversations and the engine of a loop have, by the same names and arguments."""

from __future__ import annotations

import inspect

import pytest

from edgekv.conversations import conversation, local_engine
from edgekv.loop import conversation_client, engine_client, loop_messages

OWN = {"reply", "note", "leave", "cancel", "drop", "new_number", "new_client", "stats"}
OF_CHANNELS = {"loaded", "worker_pid", "alive", "opened"}
PAIRS = [
    (conversation_client.Conversation, conversation.Conversation),
    (engine_client.Engine, local_engine.LocalEngine),
]


def members(kind):
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")} | {"close": kind.close}


@pytest.mark.parametrize(("asking", "asked"), PAIRS)
def test_every_member_is_there(asking, asked):
    served = {"state", "swapped_in"}  # tests/served.py
    for name, member in members(asking).items():
        if name in OWN | OF_CHANNELS | served or isinstance(vars(asked).get(name), type(None)):
            continue
        found = vars(asked)[name]
        assert isinstance(found, property) == isinstance(member, property), name
        if not isinstance(member, property) and not name.endswith("_conversation"):
            assert list(inspect.signature(member).parameters) == list(inspect.signature(found).parameters), name


@pytest.mark.parametrize(("asking", "asked"), PAIRS)
def test_what_is_asked_for_by_name_exists(asking, asked):
    source = inspect.getsource(asking)
    names = {part.split('"')[1] for way in ("_call(", "_look(") for part in source.split(way)[1:] if part[0] == '"'}
    assert len(names) > 5
    assert names <= set(dir(asked))


def test_the_calls_that_need_cells_exist():
    assert loop_messages.OF_IDLE <= loop_messages.WITH_CELLS <= set(dir(conversation.Conversation))
