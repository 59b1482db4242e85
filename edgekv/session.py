"""A session is one conversation: prompts in, text out, piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from .arguments import check_flag, paths_of
from .conversations.history import History, Messages, are_messages, request_of, rereadable_request, token_ids
from .conversations.snapshot import Snapshot
from .errors import ConfigError, InputError
from .generation.request import (
    INSTRUCTION,
    Focus,
    GenerationOptions,
    GenerationRequest,
    ProgressCallback,
    RewindRequest,
    check_text,
    question_to_read_with,
    reply_fields,
)
from .loop.engine import Engine
from .loop.reply_methods import in_asyncio, whole, whole_in_asyncio
from .other_names import SESSION, OtherNames
from .prompt.named_files import contents_of
from .prompt.text import PARAGRAPH, WITHIN
from .session_state import SessionState

if TYPE_CHECKING:
    from typing_extensions import Unpack

NO_TEXT = "give a text; a file goes into files="
NO_PROMPT = "give a text or messages; a file goes into files="

Files: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


class Session(SessionState, OtherNames):
    """A conversation over a runtime; `Runtime.session` makes one. `close`, `with` or closing the runtime ends it.

    `reply` returns a whole answer. `chat`, `ask` and `generate` return generators that yield pieces of text. A reply
    works only while it is iterated, and a session gives one reply at a time. `stats` has its figures when it ends,
    however it ends.

    A runtime's sessions take turns. A reply waits until those asked for before it have ended, in other threads, and
    has its turn to its end. If it is not iterated for a while, it lets others pass, and then goes on.

    `cancel` may be called from any thread. The reply then ends quietly with `stats.finish_reason == "cancelled"`, and
    the session goes on from the tokens that were read and generated. A reply that waits for its turn, or of which no
    piece was fetched yet, ends at once.

    Files are texts in UTF-8 of any size, or documents (docs/documents.md). A file that can be read only once, such as a
    pipe, is first copied to a temporary file, and a document is converted to one. `cancel` ends the copying when the
    next data arrive. Before each of several files stands a line with its name, such as `[file notes.txt]`; `generate`
    reads them as they stand.
    """

    _meant: ClassVar[Mapping[str, str]] = SESSION

    def __init__(
        self,
        engine: Engine,
        number: int,
        system: str | None,
        start: Snapshot | None = None,
        *,
        able_to_focus: bool,
        kept_in: Path | None = None,
    ) -> None:
        """Make a session. Further arguments as for `HeldConversation`.

        able_to_focus: texts can be read with a probe
        kept_in: the folder that the conversation is appended to
        """
        super().__init__(engine, number, system, start)
        self._able_to_focus = able_to_focus
        self._kept_in = kept_in

    if not TYPE_CHECKING:

        def __call__(self, *_arguments, **_options):
            raise TypeError(f"'Session' object is not callable; {SESSION['complete']}")

    def _answer(
        self,
        prompt: str | Messages,
        *,
        files: Files = (),
        focus: Focus = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Answer a text as `ask` does, and messages as `chat` does. Arguments and errors as for `chat`."""
        if isinstance(prompt, str) and not tools:
            return self.ask(prompt, files, focus=focus, progress=progress, **options)
        return self.chat(
            prompt,
            files=files,
            focus=focus,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            progress=progress,
            **options,
        )

    def chat(
        self,
        prompt: str | Messages,
        *,
        files: Files = (),
        focus: Focus = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Answer one turn, or a whole conversation in messages; yields pieces of the reply.

        prompt: a text, which is the next turn, with `files` before it; or messages, as `continue_from` takes them: the
            session reads only what it has not seen of them
        files: paths, or the path of one. In messages the content of one may be a Path
        focus: the question to read with, or a list of questions or things to find, each of which keeps what it needs
            (docs/choosing-a-policy.md). True = the text, or the user's last message; False = none; None = True for
            messages and for a text with files, unless the runtime was opened with focus=False
        tools, tool_choice, parallel_tool_calls: functions that a reply to messages may call, as for `continue_from`
        progress: called with a `Progress` after every block that is read
        options: `GenerationOptions`, such as max_tokens, stop and temperature

        Before anything is read, raises ConfigError for values that cannot work and for a focus in a runtime opened
        with focus=False; InputError for an empty text, for a file that is empty or not text, and for a prompt beyond
        the trained context; SessionError if the session is closed or is already answering; GrammarError for a grammar
        or a schema that cannot be honoured. In the midst of a reply that is raised for one that turns out too complex.
        Between two blocks, raises CeilingExceededError if the process went over its ceiling. The session then goes on
        from the tokens that were read and generated.
        """
        if not are_messages(prompt):
            if tools:
                raise ConfigError("tools= goes with messages; give [{'role': 'user', 'content': ...}], no text")
            check_text(prompt, NO_PROMPT)
            return self.ask(cast(str, prompt), files, instruction="", focus=focus, progress=progress, **options)
        if paths_of("files", files):
            raise ConfigError("files= goes with a text; in messages give the Path of a file as a content")
        return self.continue_from(
            prompt,
            focus=self._able_to_focus if focus is None else focus,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            progress=progress,
            **options,
        )

    def ask(
        self,
        question: str,
        files: Files = (),
        *,
        instruction: str | None = INSTRUCTION,
        focus: Focus = None,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Answer a question about text files of any length: a chat turn that reads the files before the question.

        instruction: put before the question if the turn has a text above it (files, or what `read` began); "" or None =
            nothing. It does not influence which cells are kept; only the question does

        Other arguments and errors as for `chat`.
        """
        check_text(question, NO_TEXT)
        if instruction is not None:
            check_text(instruction)
        if not question.strip():
            raise InputError("the text is empty; write something to answer")
        files = paths_of("files", files)
        request = GenerationRequest(
            content=_content(files, question),
            kind="chat",
            instruction=instruction or "",
            question=self._question(focus, question, otherwise=bool(files)),
            **reply_fields(options),
        )
        return self._reply(request, progress)

    def generate(
        self,
        prompt: str = "",
        *,
        files: Files = (),
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Continue a raw prompt, without a chat template. Use a session either for this or for chat, not both.

        The text is that of `files`, then `prompt`, with nothing between them. Names of control tokens in it are these
        tokens, so let no stranger write a part of it. Other arguments and errors as for `chat`.
        """
        check_text(prompt, NO_TEXT)
        content: tuple[str | Path, ...] = (*map(Path, paths_of("files", files)), *([prompt] if prompt else []))
        if not content:
            raise InputError("the prompt is empty; write something to continue, or name files")
        self._check_open()
        request = GenerationRequest(
            content=content,
            kind="text",
            **reply_fields(options),
        )
        return self._reply(request, progress)

    _answer.__qualname__ = "Session.reply"  # Python names it so in its own errors
    reply = whole(_answer)
    reply_async = whole_in_asyncio(_answer)
    chat_async = in_asyncio(chat)
    ask_async = in_asyncio(ask)
    generate_async = in_asyncio(generate)

    def read(
        self,
        text: str = "",
        *,
        files: Files = (),
        focus: Focus = None,
        goes_on: bool = False,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Read `files`, then `text`, as the beginning of a user turn, without a reply.

        The next `chat` or `ask` continues this turn. So cells are chosen before a question is known.

        focus: the question to read with, or a list as for `chat`; None, False = none: the policy alone chooses
        goes_on: they go on with the text that was read last, without an empty line between, as after a `cancel`

        Afterwards `stats` are those of the reading. Errors as for `chat`.
        """
        check_text(text, NO_TEXT)
        check_flag("goes_on", goes_on)
        files = paths_of("files", files)
        if not text.strip() and not files:
            raise InputError("there is nothing to read; give a text or files")
        if focus is True:
            raise ConfigError("focus=True reads with what is asked, but nothing is asked yet; name a question")
        question = self._question(focus, "", otherwise=False) or None
        content = (*((WITHIN,) if goes_on else ()), *_content(files, text))
        for _ in self._reply(GenerationRequest(content=content, kind="read", question=question), progress):
            pass

    def continue_from(
        self,
        history: History,
        *,
        focus: bool | str | Sequence[str] = False,
        on_overflow: str = "evict",
        shared: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool = True,
        prompt_logprobs: bool = False,
        progress: ProgressCallback | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Iterator[str]:
        """Answer a whole history, of which the session may have seen the beginning.

        The session goes back to the end of the common prefix of the history and its log, and reads only the rest.
        `stats.reused_tokens` is the number of tokens that it did not read. A session that keeps no log reads the first
        history from its beginning, and keeps one from then on.

        history: messages {"role": ..., "content": ...} of "system", "user" and "assistant", in an order that the
            model's chat template takes. A content is a text, a list of parts {"type": "text", "text": ...}, or the Path
            of a text file. If the session has a system message, it must come first. "assistant" may have "tool_calls",
            and then "tool" has the result of each (docs/replies.md). If the last message is a text of "assistant", the
            reply goes on with it
            Or a text or the Path of one as it stands; an `Infill`; or token ids, which may be control tokens. A
            `Runtime.stored` history, which has its tools already, stands for any of these
        focus: the question to read with, or a list as for `chat`, if more than a block is read and not all of it
            fits. True = the last message of the user
        on_overflow: what a history of more tokens than the budget is: "evict" reads it, "error" refuses it before
            anything is read, with a PromptLengthError
        shared: tokens that other histories of this runtime begin with, too. The runtime then keeps its state after the
            history's system message, and after the whole blocks of these tokens, which it reads without their question.
            Any session begins there if its history does, and reads only the rest (docs/going-back.md). 0 = only where
            every token has its cells; None = read all, as the session has it
        tools: functions that the model may call, each {"type": "function", "function": {"name", "description",
            "parameters"}}, with a JSON schema of its parameters. The pieces are then the text before the first call,
            and `stats.tool_calls` are the calls. Needs messages
        tool_choice: "auto", "none", "required", or {"type": "function", "function": {"name"}} for a call of that tool
        parallel_tool_calls: a reply may have several calls
        prompt_logprobs: yield the prompt first, of a text or token ids, each token with its log probability. It is then
            read from its beginning, token by token; needs logprobs

        Other arguments and errors as for `chat`. Afterwards `chat` goes on with messages, and `generate` with ids.
        """
        request = request_of(history, tools, tool_choice, parallel_tool_calls)
        question = self._question(focus, "", otherwise=False) or None
        request = replace(
            request,
            question=request.question if focus is True else question,
            on_overflow=on_overflow,
            shared=shared,
            prompt_logprobs=prompt_logprobs,
            **reply_fields(options),
        )
        if request.tools is not None and request.kind != "messages":
            raise ConfigError("tools are called in a reply to messages; give messages, or leave tools out")
        if request.tools is not None and request.tools.callable and request.grammar and request.grammar.schema is None:
            raise ConfigError(
                "tools are called in a reply without a grammar; give a JSON schema, or leave one of both out"
            )
        return self._reply(request, progress, ends_in_question=focus is True)

    def prefill_prefix(
        self,
        tokens: Sequence[int],
        *,
        focus: str | Sequence[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        """Read token ids that histories begin with, without a reply.

        `continue_from` then goes on with such a history, and `rewind(len(tokens))` comes back for the next one. Whole
        blocks that are read without a question make no difference to reading all at once (docs/going-back.md).

        focus: the question to read with, or a list as for `chat`, if more than a block is read and not all of it
            fits; None = none

        Afterwards `stats` are those of the reading. Errors as for `continue_from`.
        """
        question = self._question(focus or False, "", otherwise=False)
        for _ in self._reply(GenerationRequest(kind="ahead", tokens=token_ids(tokens), question=question), progress):
            pass

    def common_prefix_length(self, history: History, *, tools: Sequence[Mapping[str, Any]] = ()) -> int:
        """Return the length of the longest common prefix of a history and the session, in tokens.

        The history is given as to `continue_from`.

        Raises SessionError without a history, during a reply, and for another system message; InputError as
        `continue_from` does.
        """
        with rereadable_request(request_of(history, tools)) as request, self.alone():
            return cast(int, self._call("common_prefix_length", request))

    def rewind(self, n_tokens: int, *, other_draws: bool = False, progress: ProgressCallback | None = None) -> None:
        """Go back to the first `n_tokens` tokens that were read and generated; needs a session with history=True.

        The session returns to the newest checkpoint before, and reads again from there. If a turn ended with
        `n_past == n_tokens`, and its checkpoint is still there, the session is what it was then.

        n_tokens: at most `n_past`
        other_draws: later replies draw new random numbers, not those that were drawn before
        progress: called with a `Progress` after every block that is read again

        Afterwards `stats` are those of the reading. `cancel` ends it, with fewer tokens than were wanted, as does an
        interrupt: the session then stands at the checkpoint, or at the last token read. If that is within the system
        message, the next `chat` reads it from its beginning. Raises ConfigError for a number that is not possible, and
        SessionError without a history or during a reply.
        """
        for _ in self._reply(RewindRequest(n_tokens=n_tokens, other_draws=other_draws), progress):
            pass

    def fork(self) -> Session:
        """Return a session that begins with everything that this one has read and said; both go on by themselves.

        It is swapped out until its first use. It has a log if this one has, and shares what is archived.
        Raises SessionError while the session is answering, SwapError if there is no room for another session, and
        SessionFileError if the disk does not take another log.
        """
        with self.alone():
            self._begin()
            number = self._engine.fork(self._number)
        return Session(self._engine, number, self._system, able_to_focus=self._able_to_focus)

    def _question(self, focus: Focus, usual: str, *, otherwise: bool) -> str | tuple[str, ...] | None:
        """Return the question to read with; None = none."""
        self._check_open()
        return question_to_read_with(focus, usual, able=self._able_to_focus, otherwise=otherwise)


def _content(files: Sequence[os.PathLike[str]], text: str) -> tuple[str | Path, ...]:
    """Return files, then a text, with an empty line between each two; several files have lines with their names."""
    contents: list[tuple[str | Path, ...]] = [*contents_of(files), *([(text,)] if text else [])]
    return tuple(part for content in contents for part in (*content, PARAGRAPH))[:-1]
