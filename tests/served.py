"""Look behind sessions: tests find the loop's conversation of a session, and the slots of its engine."""

from __future__ import annotations

from edgekv.held_conversation import HeldConversation
from edgekv.loop.engine import Engine

begin = HeldConversation.__init__


def begin_and_note(session, engine, number, *further):
    """Note the conversation that the loop of this process serves by the session's number, which it forgets at its end.

    A session of a worker process has None.
    """
    begin(session, engine, number, *further)
    session._served = None if engine.channel.worker_pid is not None else engine.channel.loop.conversation(number)


def conversation(session):
    """Return the served conversation, once a reply that was left has ended."""
    session._await_end()
    return session._served


HeldConversation.__init__ = begin_and_note
HeldConversation._conversation = property(conversation)
Engine.slots = property(lambda engine: engine.channel.loop.engine.slots)
