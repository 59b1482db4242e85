"""Sessions that take turns, as a function that a fresh process can import. It imports nothing that counts as memory."""

from __future__ import annotations


def take_turns(model, text, n_sessions, **options):
    """Have sessions read a text each and then answer in turn; what the plan, the disk and the swapped-out ones took."""
    import edgekv

    with edgekv.Runtime(model, **options) as runtime:
        swap = runtime._engine.slot.swap
        sessions = [runtime.session() for _ in range(n_sessions)]
        for i, session in enumerate(sessions):
            session.read(f"Text {i}. {text}", focus=False)
        most = 0
        for session in [*sessions, *reversed(sessions)]:
            "".join(session.chat("Go on.", max_tokens=4))
            most = max(most, swap.memory_bytes)
        return {
            "planned": runtime.plan.peak_bytes,
            "swap": runtime.plan.parts.swap,
            "session": runtime.plan.session_bytes,
            "most": most,
            "on disk": swap.disk_bytes,
        }
