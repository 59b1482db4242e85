"""A worker's engine and conversations forward what their protocols have, by names that exist at the other end."""

from __future__ import annotations

import pytest

from edgekv.sessions.conversation import LocalConversation
from edgekv.sessions.local_engine import LocalEngine
from edgekv.sessions.protocol import Conversation, Engine
from edgekv.worker.remote import WorkerConversation, WorkerEngine

PAIRS = [(Conversation, LocalConversation, WorkerConversation), (Engine, LocalEngine, WorkerEngine)]


def members(protocol):
    """Return the names of methods and properties of a protocol; its attributes are set by `__init__`."""
    return {name for name, value in vars(protocol).items() if not name.startswith("_") and value is not None}


@pytest.mark.parametrize(("protocol", "local", "remote"), PAIRS)
def test_every_member_is_forwarded_or_defined(protocol, local, remote):
    forwarded = remote.values | remote.methods
    defined = {name for name in members(protocol) if hasattr(remote, name)}
    assert members(protocol) - {"closed"} <= forwarded | defined
    assert not forwarded & defined


@pytest.mark.parametrize(("protocol", "local", "remote"), PAIRS)
def test_what_is_forwarded_is_a_property_or_a_method_there(protocol, local, remote):
    assert all(isinstance(vars(local)[name], property) for name in remote.values)
    assert all(callable(vars(local)[name]) for name in remote.methods)


def test_an_unknown_name_is_no_attribute():
    conversation = WorkerConversation.__new__(WorkerConversation)
    with pytest.raises(AttributeError, match="'WorkerConversation' has no attribute 'nothing'"):
        conversation.nothing  # noqa: B018
