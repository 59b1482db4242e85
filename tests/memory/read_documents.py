"""A document that is given to a loaded model, for a fresh process. It imports nothing that would count as memory."""

from __future__ import annotations


def answer(model, path, question, memory):
    """Return the reply to a question about a document, and the bytes that were planned."""
    import edgekv

    with edgekv.Runtime(model, memory=memory, threads=2) as rt, rt.session() as session:
        return "".join(session.ask(question, files=[path], max_tokens=24)), rt.plan.peak_bytes
