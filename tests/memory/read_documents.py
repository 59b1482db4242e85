"""A document that is given to a loaded model, for a fresh process. It imports nothing that would count as memory."""

from __future__ import annotations


def begin_to_read(model, path, memory):
    """Read the first block of a document; returns the tokens of all of it, and the bytes that were planned.

    All of it is converted before.
    """
    import edgekv

    n_tokens = []

    def stop(progress):
        n_tokens.append(progress.tokens_total)
        session.cancel()

    with edgekv.Runtime(model, memory=memory, threads=1) as rt, rt.session() as session:
        session.read(files=[path], progress=stop)
        return n_tokens[0], rt.plan.peak_bytes
