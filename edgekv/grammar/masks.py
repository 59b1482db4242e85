"""Masks of the tokens that may come next under a grammar: llguidance, over the vocabulary of a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.binding.model import Model
from edgekv.errors import GrammarError, UnsupportedModelError
from edgekv.extras import needed
from edgekv.memory import process
from edgekv.memory.sizes import MIB

from .gbnf import Tokens, is_lark, lark_of
from .json_keys import Allowed, KeyWatch, Pieces
from .reasons import reason_of
from .size import GRAMMAR_BYTES, schema_bytes
from .source import Grammar
from .tool_schemas import TOOL_OPTIONS, Verdict

# Limits of one grammar, beside the limits of its text (`size`). Within all of them it takes at most GRAMMAR_BYTES.
LIMITS = {
    "max_grammar_size": 5_000,  # symbols
    "max_lexer_states": 5_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 1_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
COMBINING_BYTES = 32 * MIB  # peak while alternatives are combined, within llguidance's own limit
CODE_BYTES = 8 * MIB  # llguidance's library, once all of it was used
TOKEN_BYTES = 158  # bytes of a token: 155 in the search tree, and what is in it
MAKING_BYTES = 85  # further bytes of a token while the tree is made

CONTROL = b"\xff"  # marks the name of a control token, which no text holds


class Vocabulary:
    """The tokens of a model, for grammars. The model must outlive it.

    combining_bytes: peak while a grammar that `multiplies` is built

    Raises ConfigError if llguidance is not installed, and UnsupportedModelError for tokens that it cannot use.
    """

    combining_bytes = COMBINING_BYTES

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lib = needed("llguidance", "grammar")
        self._tokenizer, self._pieces = self._made()
        process.return_freed_memory()

    def begin(self, grammar: Grammar) -> Matcher:
        """Return the matcher of a new reply. Raises GrammarError for a grammar that cannot be followed."""
        watch = None if grammar.keys is None else KeyWatch(grammar.keys, self._pieces)
        n_vocab, n_tokens = self._model.n_vocab, self._tokenizer.vocab_size
        try:
            return Matcher(Position(self._matcher(grammar), grammar.name, n_vocab, n_tokens), watch)
        finally:
            process.return_freed_memory()  # building takes more than what is built, and others may build next

    def judge(self, schema: Mapping[str, Any]) -> Verdict:
        """Compile the schema of a tool, or a part of it, alone. One that is too large for the plan does not fit."""
        if schema_bytes(schema) > GRAMMAR_BYTES:
            return Verdict(False)
        text = "%llguidance {}\nstart: %json " + json.dumps({"x-guidance": TOOL_OPTIONS} | dict(schema))
        limits = self._lib.LLParserLimits(**LIMITS)
        failed, notes = self._lib.LLMatcher.validate_grammar_with_warnings(text, limits=limits)
        return Verdict(not failed, tuple(notes))

    def _matcher(self, grammar: Grammar) -> Any:
        lib = self._lib
        text = grammar.text
        if grammar.name == "grammar" and not is_lark(text):
            text = lark_of(text, Tokens(self._model.n_vocab, self._model.ends, self._token_of))
        return lib.LLMatcher(self._tokenizer, text, log_level=0, limits=lib.LLParserLimits(**LIMITS))

    def _token_of(self, spelling: str) -> int | None:
        """Return the token that is spelt so, which may be a control token; None if it is several."""
        tokens = self._model.tokenize(spelling, special=True)
        return tokens[0] if len(tokens) == 1 else None

    def _made(self) -> tuple[Any, Pieces]:
        """Return llguidance's tokenizer, and the pieces of its tokens."""
        model = self._model
        ends, is_end = [*model.ends], {*model.ends}
        tokens = [
            (b"" if token in is_end else model.piece(token)) or CONTROL + model.piece(token, special=True)
            for token in range(model.n_vocab)
        ]
        if not ends:  # a stand-in for the end, which llguidance needs; it is never sampled
            tokens.append(CONTROL + b"end")
            ends.append(model.n_vocab)
        vocabulary, tokenize = model.addresses()
        try:
            # No slices: each set of tokens that is looked up together takes a further tree, and saves 2 us a token.
            tokenizer = self._lib.LLTokenizer.from_llamacpp(
                tokens=tokens, vocab_ptr=vocabulary, tokenize_fptr=tokenize, eos_token=ends, slices=[]
            )
        except BaseException as error:
            if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":  # no Exception
                raise
            raise UnsupportedModelError(
                f"the vocabulary of {model.path.name} cannot be used with a grammar: {error}"
            ) from error
        return tokenizer, Pieces(tokens[: model.n_vocab], model.piece)


def planned_bytes(n_vocab: int, n_replies: int) -> int:
    """Return the most bytes that grammars take, for a vocabulary of this many tokens, and replies at a time."""
    return CODE_BYTES + n_vocab * TOKEN_BYTES + max(n_vocab * MAKING_BYTES, n_replies * GRAMMAR_BYTES)


class Position:
    """A place in a reply under a grammar: tokens that may come next. n_tokens: n_vocab, with a stand-in for the end"""

    def __init__(self, matcher: Any, name: str, n_vocab: int, n_tokens: int) -> None:
        """name: name of the argument that gave the grammar, for errors"""
        self._matcher = matcher
        self._bits = np.zeros(-(-n_tokens // 32) * 4, np.uint8)
        self._n_vocab = n_vocab
        self._n_tokens = n_tokens
        self.name = name

    def allowed(self, otherwise: str = "became too complex") -> Allowed:
        """Return which tokens may come next, (n_vocab,). otherwise: the words of the error if that fails"""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self.check(otherwise)
        return np.unpackbits(self._bits, count=self._n_vocab, bitorder="little").view(np.bool_)

    def advance(self, token: int) -> None:
        """Go on by a token, which must be allowed."""
        self._matcher.consume_token(token)
        self.check("became too complex")

    def after(self, token: int) -> Position:
        """Return the place after another token; this one stays."""
        found = Position(self._matcher.deep_copy(), self.name, self._n_vocab, self._n_tokens)
        found.advance(token)
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """Constraints of schemas that the grammar leaves out."""
        return tuple(self._matcher.get_grammar_warnings())

    @property
    def is_complete(self) -> bool:
        """Return True if only the end of the reply can follow."""
        return bool(self._matcher.is_stopped())

    def check(self, what: str) -> None:
        """Raise GrammarError if llguidance gave up. what: the words for it"""
        if self._matcher.is_error():
            reason = reason_of(self._matcher.get_error())
            raise GrammarError(f"{self.name} {what}: {reason}; give a simpler one (docs/replies.md)")


class Matcher:
    """A reply that follows a grammar, token by token. watch: follows the keys of its JSON"""

    def __init__(self, position: Position, watch: KeyWatch | None) -> None:
        self._position = position
        self._watch = watch
        position.check("cannot be followed")
        if not position.allowed("cannot be followed").any():
            raise GrammarError(f"{position.name} allows no reply: nothing can come first; correct it (docs/replies.md)")

    def mask(self, logits: npt.NDArray[np.float32]) -> None:
        """Set the logits (n_vocab,) of all tokens that may not come next to minus infinity."""
        allowed = self._position.allowed()
        if self._watch is not None:
            allowed[self._watch.repeating(self._position, allowed)] = False
            if not allowed.any():
                raise GrammarError(
                    f"{self._position.name} leaves no name for another key of an object; let it have fewer keys"
                )
        np.copyto(logits, -np.inf, where=~allowed)

    def accept(self, token: int) -> None:
        """Advance by a token, which must be allowed."""
        self._position.advance(token)
        if self._watch is not None:
            self._watch.accept(token)

    @property
    def notes(self) -> tuple[str, ...]:
        """Constraints of schemas that the grammar leaves out."""
        return self._position.notes

    @property
    def is_complete(self) -> bool:
        """Return True if only the end of the reply can follow."""
        return self._position.is_complete
