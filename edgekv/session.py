"""A session is one conversation: prompts in, text out, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, InputError
from .generation.request import INSTRUCTION, MAX_TOKENS, GenerationRequest, ProgressCallback, RewindRequest
from .generation.sampler import Sampling
from .grammar.source import grammar_of
from .prompt.focus import Focus, question_to_read_with
from .prompt.text import PARAGRAPH, WITHIN
from .sessions.history import History, question_of, request_of, token_ids
from .sessions.protocol import Conversation, Engine
from .sessions.record import Record
from .sessions.session_handle import SessionHandle
from .sessions.snapshot import Snapshot

if TYPE_CHECKING:
    from .prompt.tools import ToolUse

# the question that texts are read with while none is known; chosen by measurement (docs/policies.md)
GENERAL_QUESTION = "Which names, places, dates, numbers and other facts are mentioned above?"


class Session(Record):
    """A conversation over a runtime; `Runtime.session` makes one. `close`, `with` or closing the runtime ends it.

    `chat`, `ask` and `generate` return generators that yield pieces of text. A reply works only while it is iterated,
    and a session gives one reply at a time. `stats` has its figures when it ends, however it ends.

    A runtime's sessions take turns. A reply waits until those asked for before it have ended, in other threads, and
    has its turn to its end. If it is not iterated for a while, it lets others pass, and then goes on.

    `cancel` may be called from any thread. The reply then ends quietly with `stats.finish_reason == "cancelled"`, and
    the session goes on from the tokens that were read and generated. A reply that waits for its turn ends at once.

    Files are texts in UTF-8 of any size. A file that can be read only once, such as a pipe, is first copied to a
    temporary file. `cancel` ends the copying when the next data arrive.
    """

    def __init__(
        self,
        engine: Engine,
        conversation: Conversation,
        start: Snapshot | None = None,
        *,
        able_to_focus: bool,
        general: str = GENERAL_QUESTION,
    ) -> None:
        """Make a session. start: a snapshot that the conversation begins with at its first use

        general: the question that `read` reads with if it is given none; "" = none
        """
        super().__init__(SessionHandle(engine, conversation, start))
        self._able_to_focus = able_to_focus
        self._general = general

    def chat(
        self,
        text: str,
        *,
        files: Sequence[str | os.PathLike[str]] = (),
        focus: Focus = None,
        max_tokens: int | None = MAX_TOKENS,
        stop: str | Sequence[str] = (),
        allow_loops: bool = False,
        sampling: Sampling | None = None,
        grammar: str | None = None,
        json_schema: Mapping[str, Any] | str | bool | None = None,
        logprobs: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[str]:
        """Answer one turn, with `files` before `text`; yields pieces of the reply.

        focus: the question to read with, or a list of questions or things to find, each of which keeps what it needs
            (docs/policies.md). True = `text`; False = none; None = `text` if there are files, unless the runtime was
            opened with focus=False
        max_tokens: longest reply, in tokens; None = until the model ends it, or its trained context is full
        stop: a text, or several, that end the reply; it ends before the first one that is complete
        allow_loops: go on when the reply loops. It loops when its last tokens are one sequence of at most 60 tokens,
            three times in a row or more, and these are at least 60 tokens together
        sampling: how tokens are chosen; None = `Sampling()`
        grammar: what the reply must be, in the syntax of llama.cpp (GBNF) or of Lark (docs/replies.md)
        json_schema: a JSON schema that the reply must fit, as a mapping or a text; True = any JSON. Both need a runtime
            opened with grammars=True
        logprobs: yield `edgekv.Piece`s, texts which have their tokens with log probabilities, and this many of the
            most probable alternatives, at most 20; None = plain texts
        progress: called with a `Progress` after every block that is read

        Before anything is read, raises ConfigError for values that cannot work and for a focus in a runtime opened
        with focus=False; InputError for an empty text, for a file that is empty or not text, and for a prompt beyond
        the trained context; SessionError if the session is closed or is already answering; GrammarError for a grammar
        or a schema that cannot be honoured. In the midst of a reply that is raised for one that turns out too complex.
        Between two blocks, raises CeilingExceededError if the process went over its ceiling. The session then goes on
        from the tokens that were read and generated.
        """
        return self.ask(
            text,
            files,
            instruction="",
            focus=focus,
            max_tokens=max_tokens,
            stop=stop,
            allow_loops=allow_loops,
            sampling=sampling,
            grammar=grammar,
            json_schema=json_schema,
            logprobs=logprobs,
            progress=progress,
        )

    def ask(
        self,
        question: str,
        files: Sequence[str | os.PathLike[str]] = (),
        *,
        instruction: str = INSTRUCTION,
        focus: Focus = None,
        passes: int = 1,
        max_tokens: int | None = MAX_TOKENS,
        stop: str | Sequence[str] = (),
        allow_loops: bool = False,
        sampling: Sampling | None = None,
        grammar: str | None = None,
        json_schema: Mapping[str, Any] | str | bool | None = None,
        logprobs: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[str]:
        """Answer a question about text files of any length: a chat turn that reads the files before the question.

        instruction: put before the question if the turn has a text above it (files, or what `read` began); "" =
            nothing. It does not influence which cells are kept; only the question does
        passes: 2 = if not all of it fits, read and answer, go back, and read the files again with the question and
            that answer in mind. Only the second answer is yielded, and only it stays in the conversation. It needs
            files, a focus, and room for a snapshot unless the session is new (CeilingError)

        Other arguments and errors as for `chat`.
        """
        if not question.strip():
            raise InputError("the text is empty; write something to answer")
        asked = self._question(focus, question, otherwise=bool(files))
        if passes != 1 and not files:
            raise ConfigError(f"passes={passes} reads the files again, and there are none; name some, or leave it out")
        if passes != 1 and asked is None:
            raise ConfigError(
                f"passes={passes} reads with the first answer in mind, but focus is off; leave one of both"
            )
        request = GenerationRequest(
            content=_content(files, question),
            kind="chat",
            instruction=instruction,
            question=asked,
            passes=passes,
            max_tokens=max_tokens,
            stop=_texts(stop),
            allow_loops=allow_loops,
            sampling=sampling or Sampling(),
            grammar=grammar_of(grammar, json_schema),
            logprobs=logprobs,
        )
        return self._handle.reply(request, progress)

    def generate(
        self,
        prompt: str = "",
        *,
        files: Sequence[str | os.PathLike[str]] = (),
        max_tokens: int | None = MAX_TOKENS,
        stop: str | Sequence[str] = (),
        allow_loops: bool = False,
        sampling: Sampling | None = None,
        grammar: str | None = None,
        json_schema: Mapping[str, Any] | str | bool | None = None,
        logprobs: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[str]:
        """Continue a text as it stands, without a chat template. Use a session either for this or for chat, not both.

        The text is that of `files`, then `prompt`, with nothing between them. Other arguments and errors as for `chat`.
        """
        content: tuple[str | Path, ...] = (*map(Path, files), *([prompt] if prompt else []))
        if not content:
            raise InputError("the prompt is empty; write something to continue, or name files")
        self._handle.live()
        request = GenerationRequest(
            content=content,
            kind="text",
            max_tokens=max_tokens,
            stop=_texts(stop),
            allow_loops=allow_loops,
            sampling=sampling or Sampling(),
            grammar=grammar_of(grammar, json_schema),
            logprobs=logprobs,
        )
        return self._handle.reply(request, progress)

    def read(
        self,
        text: str = "",
        *,
        files: Sequence[str | os.PathLike[str]] = (),
        focus: Focus = None,
        goes_on: bool = False,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Read `files`, then `text`, as the beginning of a user turn, without a reply.

        The next `chat` or `ask` continues this turn. So cells are chosen before a question is known.

        focus: the question to read with, or a list as for `chat`. True = GENERAL_QUESTION, but none if the policy
            is `replay` or ends with +heads; None = the same, unless the runtime was opened with focus=False; False =
            none: the policy alone chooses
        goes_on: they go on with the text that was read last, without an empty line between, as after a `cancel`

        Afterwards `stats` are those of the reading. Errors as for `chat`.
        """
        if not text.strip() and not files:
            raise InputError("there is nothing to read; give a text or files")
        question = self._question(focus, self._general, otherwise=True) or None
        content = (*((WITHIN,) if goes_on else ()), *_content(files, text))
        for _ in self._handle.reply(GenerationRequest(content=content, kind="read", question=question), progress):
            pass

    def continue_from(
        self,
        history: History,
        *,
        focus: bool | str | Sequence[str] = False,
        on_overflow: str = "evict",
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        max_tokens: int | None = MAX_TOKENS,
        stop: str | Sequence[str] = (),
        allow_loops: bool = False,
        sampling: Sampling | None = None,
        grammar: str | None = None,
        json_schema: Mapping[str, Any] | str | bool | None = None,
        logprobs: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[str]:
        """Answer a whole history, of which the session may have seen the beginning; needs a session with log=True.

        The session goes back to the end of the common prefix of the history and its log, and reads only the rest.
        `stats.reused_tokens` is the number of tokens that it did not read.

        history: messages {"role": ..., "content": ...} of "system", "user" and "assistant", in an order that the
            model's chat template takes, of which each content is a text or the Path of a text file; a text or the Path
            of one as it stands; or token ids, which may be control tokens. If the session has a system message, it must
            come first. "assistant" may have "tool_calls", and then "tool" has the result of each (docs/replies.md)
        focus: the question to read with, or a list as for `chat`, if more than a block is read and not all of it
            fits. True = the last message of the user
        on_overflow: what a history of more tokens than the budget is: "evict" reads it, "error" refuses it before
            anything is read, with a PromptLengthError
        tools: functions that the model may call, each {"type": "function", "function": {"name", "description",
            "parameters"}}, with a JSON schema of its parameters. The pieces are then the text before the first call,
            and `stats.tool_calls` are the calls. Needs a runtime opened with grammars=True, and messages
        tool_choice: "auto", "none", "required", or {"type": "function", "function": {"name"}} for a call of that tool
        parallel_tool_calls: a reply may have several calls

        Other arguments and errors as for `chat`. Afterwards `chat` goes on with messages, and `generate` with ids.
        """
        request = request_of(history)
        asked = question_of(request.roles, request.content) if focus is True else None
        request = replace(
            request,
            question=self._question(focus, asked or "", otherwise=False) or None,
            on_overflow=on_overflow,
            tools=_tool_use(tools, tool_choice, parallel_tool_calls),
            max_tokens=max_tokens,
            stop=_texts(stop),
            allow_loops=allow_loops,
            sampling=sampling or Sampling(),
            grammar=grammar_of(grammar, json_schema),
            logprobs=logprobs,
        )
        if request.tools is not None and (request.kind != "messages" or (request.tools.callable and request.grammar)):
            raise ConfigError("tools are called in a reply to messages, without a grammar; leave the one or the other")
        return self._handle.reply(request, progress)

    def prefill_prefix(
        self,
        tokens: Sequence[int],
        *,
        focus: str | Sequence[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Read token ids that histories begin with, without a reply; needs a session with log=True.

        `continue_from` then goes on with such a history, and `rewind(len(tokens))` comes back for the next one. Whole
        blocks that are read without a question make no difference to reading all at once (docs/python.md).

        focus: the question to read with, or a list as for `chat`, if more than a block is read and not all of it
            fits; None = none

        Afterwards `stats` are those of the reading. Errors as for `continue_from`.
        """
        question = self._question(focus or False, "", otherwise=False)
        for _ in self._handle.reply(
            GenerationRequest(kind="ahead", tokens=token_ids(tokens), question=question), progress
        ):
            pass

    def common_prefix_length(self, history: History, *, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Return the length of the longest common prefix of a history and the session, in tokens.

        The history is given as to `continue_from`.

        Raises SessionError without a log, during a reply, and for another system message; InputError as
        `continue_from` does.
        """
        request = replace(request_of(history), tools=_tool_use(tools))
        with self._handle.alone(), self._handle.begun() as conversation:
            return conversation.common_prefix_length(request)

    def rewind(self, n_tokens: int, *, other_draws: bool = False, progress: ProgressCallback | None = None) -> None:
        """Go back to the first `n_tokens` tokens that were read and generated; needs a session with log=True.

        The session returns to the newest checkpoint before, and reads again from there. If a turn ended with
        `n_past == n_tokens`, and its checkpoint is still there, the session is what it was then.

        n_tokens: at most `n_past`
        other_draws: later replies draw new random numbers, not those that were drawn before
        progress: called with a `Progress` after every block that is read again

        Afterwards `stats` are those of the reading. `cancel` ends it, with fewer tokens than were wanted, as does an
        interrupt: the session then stands at the checkpoint, or at the last token read. If that is within the system
        message, the next `chat` reads it from its beginning. Raises ConfigError for a number that is not possible, and
        SessionError without a log or during a reply.
        """
        for _ in self._handle.reply(RewindRequest(n_tokens=n_tokens, other_draws=other_draws), progress):
            pass

    def alone(self) -> AbstractContextManager[Conversation]:
        """Return a context with the conversation, for one user at a time. Raises SessionError while another has it."""
        return self._handle.alone()

    def cancel(self) -> None:
        """End the running reply, if any, at the next block or token. May be called from any thread."""
        self._handle.cancel()

    def close(self) -> None:
        """End the session, and free its state, at the latest when another session is used."""
        self._handle.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if the session or its runtime was closed."""
        return self._handle.closed

    def _question(self, focus: Focus, usual: str, *, otherwise: bool) -> str | tuple[str, ...] | None:
        """Return the question to read with; None = none."""
        self._handle.live()
        return question_to_read_with(focus, usual, able=self._able_to_focus, otherwise=otherwise)


def _content(files: Sequence[str | os.PathLike[str]], text: str) -> tuple[str | Path, ...]:
    """Return files, then a text, with an empty line between each two."""
    sources: list[str | Path] = [*map(Path, files), *([text] if text else [])]
    return tuple(part for source in sources for part in (source, PARAGRAPH))[:-1]


def _texts(stop: str | Sequence[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _tool_use(
    tools: Sequence[Mapping[str, Any]], choice: str | Mapping[str, Any] = "auto", parallel: bool = True
) -> ToolUse | None:
    if not tools and choice in ("auto", "none"):
        return None
    from .prompt.tools import tool_use  # few replies need it

    return tool_use(tools, choice, parallel=parallel)
