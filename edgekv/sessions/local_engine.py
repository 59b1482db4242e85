"""The engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgekv.engine.loaded_model import LoadedModel
from edgekv.errors import UnsupportedModelError
from edgekv.generation.request import GenerationRequest, Logging
from edgekv.planning.choice import Request
from edgekv.prompt.template import chat_format
from edgekv.prompt.turns import Turns

from .cache_client import CacheClient
from .conversation import LocalConversation
from .history import check_ids, prompt_of
from .protocol import Conversation
from .session_file import load_log, load_session
from .session_history import SessionHistory
from .turn_queue import TurnQueue


class LocalEngine(LoadedModel):
    """An `Engine` whose native side runs in this process. Raises the errors of `Runtime`."""

    worker_pid = None

    def __init__(self, path: Path, request: Request, mark: bytes | None = None) -> None:
        super().__init__(path, request, mark)
        self.turn_queue = TurnQueue()

    def new_conversation(self, system: str | None, logging: Logging | None = None) -> LocalConversation:
        """Begin a conversation. It takes the cells if they are free."""
        conversation = LocalConversation(self, system, None if logging is None else SessionHistory(logging, self.plan))
        with self.turn_queue.ticket(conversation) as ticket:
            if ticket.enter_if_free():
                self.slot.claim_if_free(conversation.client)
        return conversation

    def load_conversation(
        self, path: Path, instead_of: Conversation | None = None, *, keeps_log: bool = True
    ) -> LocalConversation:
        """Load the conversation of a session file into the cells. keeps_log: keep the log of the file, if it has one"""
        history = load_log(path, self, Logging()) if keeps_log else None
        client = CacheClient()
        replaced = instead_of.client if isinstance(instead_of, LocalConversation) else None
        try:
            begun = self.slot.claim(client, lambda: load_session(path, self), replaced)
            client.pinned = begun.block_loop.pinned
            return LocalConversation(self, begun.system, history, begun=begun, client=client)
        except BaseException:
            if history is not None:
                history.close()
            self.slot.release_later(client)
            raise

    def tokenize(self, text: str, begin: bool, special: bool) -> list[int]:
        """Return the tokens of a text.

        begin: with the tokens that the model expects before a text
        special: read names of control tokens as these tokens
        """
        return self.model.tokenize(text, begin=begin, special=special, space_prefix=begin)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens. Raises InputError for ids that the vocabulary lacks."""
        return "".join(self.model.text(check_ids(tokens, self.model.n_vocab)))

    def count(self, request: GenerationRequest) -> int:
        """Return the number of tokens of a history. Raises InputError."""
        return prompt_of(request, self.model, Turns(self.model, None), ()).count()

    def reply_opening(self) -> str:
        """Return the text that the chat template puts before a reply; "" if the model has no usable template."""
        try:
            return chat_format(self.model, with_system=False).after_user
        except UnsupportedModelError:
            return ""

    def reap(self) -> None:
        """Free the state of closed conversations."""
        self.slot.reap()

    def close(self) -> None:
        """End all calls under way, and free the model and its cells."""
        self.turn_queue.close()
        super().close()
