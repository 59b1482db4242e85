"""Sessions that take turns, as a function that a fresh process can import. It imports nothing that counts as memory."""

from __future__ import annotations


def take_turns(model, text, n_sessions, **options):
    """Have sessions read a text each and then answer in turn; what the plan, the disk and the swapped-out ones took."""
    import edgekv

    with edgekv.Runtime(model, **options) as runtime:
        swap = runtime._engine.channel.loop.engine.slots.swap
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


def share_a_beginning(model, text, **options):
    """Have sessions answer histories that begin alike; returns the planned peak, and the tokens reused for each."""
    import edgekv

    reused = []
    with edgekv.Runtime(model, **options) as runtime:
        n_shared = len(runtime.tokenize(text))
        for i in range(3):
            with runtime.session(history=True) as session:
                history = [{"role": "user", "content": f"{text} {i}?"}]
                "".join(session.continue_from(history, shared=n_shared, focus=True, max_tokens=4))
                reused.append(session.stats.reused_tokens)
        return {"planned": runtime.plan.peak_bytes, "reused": reused, "budget": runtime.plan.budget_cells}
