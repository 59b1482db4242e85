"""A model that was opened: texts as its tokens, prompts as it reads them, and a look inside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from .arguments import path_of
from .binding.model import Context, Model, header_for
from .cells.block_loop import BlockLoop
from .cells.loaded_model import LoadedModel
from .cells.memory_guard import MemoryGuard
from .conversations.history import History, StoredHistory, question_of, request_of, rereadable_request, token_ids
from .errors import ConfigError, SessionError
from .generation.request import check_text
from .loop.engine import Engine
from .models.header import Header
from .options import Options
from .planning.plan import Plan


class OpenModel:
    """A model of an engine, until it is closed.

    options: those that the plan resolved
    """

    closed = True  # until it was opened
    options: Options
    _engine: Engine

    @property
    def plan(self) -> Plan:
        """The plan. It changes if the ceiling moves, and when the first reply that follows a grammar takes memory."""
        return self._engine.plan

    def tokenize(self, text: str, *, begin: bool = False, special: bool = False) -> list[int]:
        """Return the token ids of a text.

        begin: with the tokens that the model expects before a text, and after it
        special: read the names of control tokens as these tokens; otherwise no token steers the model

        Raises InputError for a text that UTF-8 cannot hold.
        """
        self._check_open()
        check_text(text)
        return cast("list[int]", self._engine.call("tokenize", text, begin, special))

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids. Raises InputError for a value that is no id of the vocabulary."""
        self._check_open()
        return cast(str, self._engine.call("text_of", token_ids(tokens, least=0)))

    def pieces_of(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the bytes of each token id: a part of a character, perhaps; of a control token its name.

        Raises InputError as `text_of` does.
        """
        self._check_open()
        return cast("list[bytes]", self._engine.call("pieces_of", token_ids(tokens, least=0)))

    def count_tokens(self, history: History, *, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Return the number of tokens of a history; arguments and errors as for `Session.continue_from`."""
        self._check_open()
        with rereadable_request(request_of(history, tools)) as request:
            return cast(int, self._engine.call("count", request))

    def prompt_text(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Return the text that messages are read as, in the chat template's words. Arguments as for `count_tokens`.

        Contents stand in it as they are, though names of control tokens in them are not read as such.
        """
        self._check_open()
        with rereadable_request(request_of(messages, tools)) as request:
            return cast(str, self._engine.call("prompt_text", request))

    @contextmanager
    def stored(
        self,
        history: History,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        folder: str | os.PathLike[str] | None = None,
    ) -> Iterator[StoredHistory]:
        """Check, render and tokenise a history once for several sessions; yields it for the length of the block.

        It stands for the history and the tools in `Session.common_prefix_length` and `Session.continue_from`. Its
        tokens lie on the disk, in this folder; None = the one that TMPDIR names.

        Arguments and errors as for `Session.continue_from`; SessionFileError if the folder takes no file.
        """
        self._check_open()
        if isinstance(history, StoredHistory):
            yield history
            return
        request = request_of(history, tools, tool_choice, parallel_tool_calls)
        with rereadable_request(request) as request:
            question = question_of(request)
            place = None if folder is None else os.path.abspath(path_of("folder", folder))
            number, n_opening = self._engine.call("store_history", request, place)
        try:
            yield StoredHistory(
                replace(request, stored=number, question=question, content=(), roles=(), calls=(), tokens=()), n_opening
            )
        finally:
            if not self.closed:
                self._engine.call("forget_history", number)

    def reply_opening(self) -> str:
        """Return the text that the chat template puts before a reply; "" if the model has no usable template."""
        self._check_open()
        return cast(str, self._engine.call("reply_opening"))

    @property
    def model(self) -> Model:
        """The loaded model. Raises ConfigError in an isolated runtime, as do `context`, `block_loop(s)` and `guard`."""
        return self._local().model

    @property
    def header(self) -> Header:
        """The header of the model's file, with the chat template of the options.

        Raises ModelError or ConfigError if an isolated runtime can no longer read these files.
        """
        return self.model.header if self.worker_pid is None else header_for(self.plan.model, self.options)

    @property
    def context(self) -> Context:
        """The llama.cpp context with the cells."""
        return self._local().context

    @property
    def block_loop(self) -> BlockLoop:
        """The block loop, which feeds and compacts the cells."""
        return self._local().block_loop

    @property
    def block_loops(self) -> Sequence[BlockLoop]:
        """The block loop of each slot: one, or as many as `parallel` asks for."""
        return self._local().block_loops

    @property
    def guard(self) -> MemoryGuard:
        """The memory guard, which compares the memory of the process with the ceiling."""
        return self._local().guard

    def _local(self) -> LoadedModel:
        loaded = self._engine.channel.loaded
        if loaded is None:
            raise ConfigError("isolated=True keeps model and cells in another process; open the runtime without it")
        return loaded

    @property
    def worker_pid(self) -> int | None:
        """The process id of an isolated runtime's worker; None = the model is in this process."""
        return self._engine.channel.worker_pid

    @property
    def alive(self) -> bool:
        """False once an isolated runtime's worker has ended: its next use raises WorkerError."""
        return self._engine.channel.alive

    def _check_open(self) -> None:
        if self.closed:
            raise SessionError("this runtime is closed; open another")
