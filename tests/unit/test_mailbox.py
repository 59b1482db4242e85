"""The box of an answer: who asked is called once it is there, whether that was before or after."""

from __future__ import annotations

import pytest

from edgekv.errors import SessionError
from edgekv.loop.loop_channel import Mailbox
from edgekv.loop.loop_messages import Raised


@pytest.mark.parametrize("is_there", [False, True])
def test_who_asked_is_called_once_the_answer_is_there(is_there):
    box, calls = Mailbox(), []
    if is_there:
        box.put("answer")
    box.notify(lambda: calls.append(box.get()))
    assert len(calls) == is_there
    if not is_there:
        box.put("answer")
    assert calls == ["answer"]


def test_an_error_is_raised_where_the_answer_is_fetched():
    box = Mailbox()
    box.put(Raised(SessionError("no")))
    with pytest.raises(SessionError, match="no"):
        box.get()
