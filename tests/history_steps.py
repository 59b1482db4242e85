"""Notes how often a history is checked, rendered and tokenised."""

from __future__ import annotations

from edgekv.binding.text_tokenizer import Tokenizer
from edgekv.conversations import history
from edgekv.prompt import turns


def noted_steps(monkeypatch, word):
    """Return a list that gets "checked", "rendered" and "tokenised" each time this is done. word: of the history"""
    done = []

    def watch(owner, name, step):
        plain = getattr(owner, name)

        def watched(*given, **named):
            if step != "tokenised" or word in given[1]:
                done.append(step)
            return plain(*given, **named)

        monkeypatch.setattr(owner, name, watched)

    watch(history, "messages_of", "checked")
    watch(turns, "rendered", "rendered")
    watch(Tokenizer, "_read", "tokenised")
    return done
