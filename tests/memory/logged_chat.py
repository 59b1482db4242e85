"""A chat with a log, for a fresh process. It imports nothing that would count as memory."""

from __future__ import annotations


def chat(model, text, n_turns, n_returns, **options):
    """Turns, each gone back on and said again some times; tokens seen, bytes of the largest checkpoint and planned."""
    import edgekv

    with edgekv.Runtime(model, **options) as rt, rt.session(history=True) as session:
        for _ in range(n_turns):
            n_past = session.n_past
            for _ in range(n_returns):
                for _ in session.chat(text, max_tokens=8):
                    pass
                session.rewind(n_past)
            for _ in session.chat(text, max_tokens=8):
                pass
        served = rt._engine.channel.loop.conversation(session._number)
        largest = max(checkpoint.stored.nbytes for checkpoint in served.state.history.checkpoints._all)
        return session.n_past, largest, rt.plan.peak_bytes


def grow(model, text, n_turns, **options):
    """A chat of some turns, after two that touch what it touches: tokens seen meanwhile, and bytes grown by."""
    import edgekv
    from edgekv.memory.process import peak_resident_bytes

    with edgekv.Runtime(model, **options) as rt, rt.session(history=True) as session:
        before = (0, 0)
        for i in range(2 + n_turns):
            if i == 2:
                before = session.n_past, peak_resident_bytes()
            for _ in session.chat(text, max_tokens=8):
                pass
        return session.n_past - before[0], peak_resident_bytes() - before[1]
