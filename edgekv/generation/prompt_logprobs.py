"""The tokens of a prompt, each with the log probability that the model gave it, for a reply that begins with them."""

from __future__ import annotations

from collections.abc import Iterator

from edgekv.engine.block_loop import BlockLoop
from edgekv.engine.loaded_model import LoadedModel
from edgekv.errors import ConfigError

from .logprobs import UNKNOWN, LogprobRecorder, Piece, Token, packed, unpacked


class PromptLogprobs:
    """Notes the tokens of a prompt while it is read, which is token by token, as slowly as a reply is generated.

    Raises ConfigError for a policy that feeds blocks again, since that leaves no logits.
    """

    def __init__(self, engine: LoadedModel, block_loop: BlockLoop, n_top: int) -> None:
        if engine.options.replays:
            raise ConfigError("prompt_logprobs=True needs logits of every token, which policy='replay' does not leave")
        self._engine = engine
        self._block_loop = block_loop
        self._recorder = LogprobRecorder(n_top)
        self._noted = bytearray()

    def note(self, token: int) -> None:
        """Note a token that is fed next. The first one has no log probability."""
        model, context = self._engine.model, self._engine.context
        if not self._noted:
            self._noted += packed(Token(token, model.piece(token), UNKNOWN, ()))
            return
        logits = context.logits_array(self._block_loop.logits_row)
        self._noted += packed(self._recorder.logprobs(logits).of(token, model))

    def pieces(self) -> Iterator[Piece]:
        """Yield the text of the prompt in pieces, with its tokens. Those after the text go with the last piece."""

        def each() -> Iterator[int]:
            for token in unpacked(self._noted):
                self._recorder.add(token)
                yield token.id

        last = Piece("")
        for piece in self._recorder.pieces(self._recorder.follow(self._engine.model.text(each()))):
            if piece:
                yield last
                last = piece
        yield Piece(last, last.packed + self._recorder.rest())
