"""A loop over a real engine, driven step by step in the thread of the test."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from pathlib import Path

import edgekv
from edgekv.conversations.local_engine import LocalEngine
from edgekv.generation.request import GenerationRequest, Logging
from edgekv.generation.stats import Stats
from edgekv.loop.loop import Loop
from edgekv.loop.loop_messages import Call, Ended, MoveCeiling, NewConversation, Next, Raised, Reply
from edgekv.loop.open_reply import Post
from edgekv.planning.choice import Request

SOON = 1.0  # seconds between two readings of the clock: nobody is waited for


class Driven:
    """Conversations, by numbers from 1 on, and their replies."""

    def __init__(self, engine, n, *, log=False):
        self.engine = engine
        clock = itertools.count()
        self.loop = Loop(engine, lambda: SOON * next(clock))
        self._log, self._numbers = log, itertools.count(1)
        self.begin_steps()
        for _ in range(n):
            self.open()

    def begin_steps(self, on_step=lambda step: None):
        """Count steps from 0 on, and call a function before each."""
        self.n_steps, self._on_step = 0, on_step

    def open(self):
        """Open a conversation; returns its number."""
        number = next(self._numbers)
        self.ask(NewConversation(number, None, Logging() if self._log else None))
        return number

    def post(self, message, client="me"):
        """Post a message; returns a list that takes its answer."""
        answers = []
        self.loop.take(Post(message, answers.append, client))
        return answers

    def ask(self, message):
        """Post a message, and drive the loop until it is answered."""
        answers = self.post(message)
        while not answers:
            self.step()
        if isinstance(answers[0], Raised):
            raise answers[0].error
        return answers[0]

    def step(self):
        self._on_step(self.n_steps)
        self.n_steps += 1
        self.loop.step()

    def move(self, ceiling_bytes):
        return self.post(MoveCeiling(ceiling_bytes), "who moves")

    def state(self, number):
        return self.loop.conversation(number).state

    def reply(self, *numbers, text="", n=8, **fields):
        """Drive replies of conversations to their ends, all at once; returns what each said, and how it ended."""
        sampling = edgekv.Sampling(temperature=0)
        request = GenerationRequest(
            content=(text,), kind="text", max_tokens=n, sampling=sampling, ignore_eos=True, allow_loops=True, **fields
        )
        waits = {}
        for number in numbers:
            waits[number] = self.post(Reply(number, number, request, None, Stats(), False), number)
        said = dict.fromkeys(numbers, "")
        ended = {}
        while waits:
            self.step()
            for number, answers in list(waits.items()):
                if not answers:
                    continue
                if isinstance(answers[0], str):
                    said[number] += answers[0]
                    waits[number] = self.post(Next(number), number)
                    continue
                del waits[number]
                ended[number] = answers[0]
                assert isinstance(ended[number], Ended), ended[number]
                if ended[number].error is not None:
                    raise ended[number].error
        return [(said[number], ended[number].stats) for number in numbers]

    def kept(self, number):
        """Return the positions that every head of a conversation keeps."""
        heads = self.engine.loaded.block_loop.cache.heads
        return [self.ask(Call(number, "kept_positions", at)).tolist() for at in heads]


@contextmanager
def driven(model, n=1, *, log=False, **settings):
    """Yield a driven loop over a model with n conversations."""
    engine = LocalEngine(Path(model), Request.of(**settings))
    try:
        yield Driven(engine, n, log=log)
    finally:
        engine.close()
