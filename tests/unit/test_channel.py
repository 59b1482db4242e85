"""Messages between host and worker: every message comes back as it was, in whatever parts it arrives."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import pytest

from edgekv.loop.loop_messages import Call, Next
from edgekv.worker.channel import READ_BYTES, Channel
from edgekv.worker.pipe_messages import decode, encode

MESSAGES = [
    "",
    "piece",
    "\u4e2d\U0001f600",
    "\ud800",
    Next(0),
    Next(2**40),
    Call(1, "n_past"),
    None,
    5,
]


@pytest.fixture
def channel():
    """A channel that receives what it sends."""
    with closing(Channel(*os.pipe())) as channel:
        yield channel


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_message_comes_back(channel, message):
    channel.send(b"", encode(message))
    received = decode(channel.receive())
    assert (type(received), received) == (type(message), message)


def test_what_goes_with_every_token_is_one_write_and_one_read(channel, monkeypatch):
    calls = []
    for name in ("read", "write"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, call=call: (calls.append(name), call(*given))[1])
    for message in ("piece", Next(7)):
        channel.send(b"", encode(message))
        assert decode(channel.receive()) == message
    assert calls == ["write", "read"] * 2


def test_messages_that_arrive_together_are_told_apart(channel):
    sizes = [3, 0, 70, 2 * READ_BYTES, 1]
    sender = threading.Thread(target=lambda: [channel.send(b"head", n * b"x") for n in sizes])
    sender.start()
    assert [bytes(channel.receive()) for _ in sizes] == [b"head" + n * b"x" for n in sizes]
    sender.join()
    assert not channel.wait(0)
    channel.send(b"", b"a")
    channel.send(b"", b"b")
    assert channel.receive() == b"a"
    assert channel.wait(None)
    assert channel.receive() == b"b"


@pytest.mark.parametrize("size", [0, 1, READ_BYTES - 9, READ_BYTES - 8, READ_BYTES, 5 * READ_BYTES + 3])
def test_a_message_of_any_size_comes_whole(channel, size):
    message = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    sender = threading.Thread(target=channel.send, args=(b"", message))
    sender.start()
    received = channel.receive()
    sender.join()
    assert bytes(received) == message


def test_a_message_may_come_byte_by_byte():
    reading, writing = os.pipe()
    whole = len(b"message").to_bytes(8, "little") + b"message"

    def trickle():
        for byte in whole:
            os.write(writing, bytes([byte]))

    with closing(Channel(reading, os.dup(writing))) as channel:
        sender = threading.Thread(target=trickle)
        sender.start()
        assert bytes(channel.receive()) == b"message"
        sender.join()
    os.close(writing)


@pytest.mark.parametrize("sent", [b"", b"\5\0", b"\5\0\0\0\0\0\0\0abc"])
def test_a_message_that_is_cut_off_is_an_end(sent):
    reading, writing = os.pipe()
    with closing(Channel(reading, os.open(os.devnull, os.O_WRONLY))) as channel:
        os.write(writing, sent)
        os.close(writing)
        with pytest.raises(EOFError):
            channel.receive()
