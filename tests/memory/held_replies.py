"""Replies that follow JSON schemas, for a fresh process. It imports nothing that would count as memory."""

from __future__ import annotations

import contextlib


def replies(model, schemas, **options):
    """A reply to each schema; how many were refused or given up, and the bytes that were planned."""
    import edgekv

    n_refused = 0
    with edgekv.Runtime(model, **options) as rt:
        for schema in schemas:
            with rt.session() as session, contextlib.ExitStack() as stack:
                stack.enter_context(contextlib.suppress(edgekv.GrammarError, edgekv.CeilingError))
                n_refused += 1
                for _ in session.chat("Hello", json_schema=schema, max_tokens=200, allow_loops=True, logprobs=5):
                    pass
                n_refused -= 1
        return n_refused, rt.plan.peak_bytes, rt.plan.parts.grammars
