"""Look behind sessions: tests find the loop's conversation of a session's, and the slots of its engine."""

from __future__ import annotations

from edgekv.loop.clients import ConversationClient, Engine

begin = ConversationClient.__init__


def begin_and_note(conversation, engine, number, system):
    """Note the conversation that the loop of this process serves by the same number, which it forgets at its end."""
    begin(conversation, engine, number, system)
    if engine.channel.worker_pid is None:
        conversation.served = engine.channel.loop.conversation(number)


def behind(name):
    """Return a property: that of the served conversation, once a reply that was left has ended."""

    def look(conversation):
        conversation._await_end()
        return getattr(conversation.served, name)

    return property(look)


ConversationClient.__init__ = begin_and_note
for name in ("state", "_prompts", "_swapped_in"):
    setattr(ConversationClient, name, behind(name))
Engine.slots = property(lambda engine: engine.channel.loop.engine.slots)
