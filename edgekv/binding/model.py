"""A model in memory: loading it, its vocabulary, and contexts over it."""

from __future__ import annotations

import codecs
import ctypes as c
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.errors import InvalidModelError, SessionError, UnsupportedModelError
from edgekv.memory import process
from edgekv.models.chat_template import with_template
from edgekv.models.header import Header, read_header
from edgekv.options import KV_TYPES, MOST_DEVICES, Options

from . import library, structs
from .callback import Callback
from .markers import NAMED, Markers
from .text_tokenizer import Tokenizer

NAME_CHARS = 256  # characters; more than the name of a token has


def header_for(path: Path, options: Options) -> Header:
    """Return the header of a model's file, with the chat template of the options. Raises ModelError, ConfigError."""
    return with_template(read_header(path), options.chat_template, options.thinking)


@contextmanager
def refusals(path: Path, header: Header) -> Iterator[None]:
    """Name the file and a remedy in the error of a block that loads it."""
    try:
        yield
    except InvalidModelError as error:
        if "unknown model architecture" in str(error):
            raise UnsupportedModelError(
                f"architecture {header.architecture!r} of {path} is not known to the llama.cpp that edgekv is built "
                "on; choose a model of another family"
            ) from error
        raise InvalidModelError(f"{path} is refused: {error}; download it again or convert it anew") from error


class Model:
    """A loaded GGUF model, or with `no_alloc` only its metadata and vocabulary. Close it, or use it in `with`.

    Its vocabulary may be used from any thread, also while another one closes the model: a call ends first, and later
    ones raise SessionError.

    header: the header of the file, if the caller has just read it; None = read it
    Raises ModelError for a file that is missing, broken, or that edgekv cannot run, and ConfigError for a chat template
    that cannot be read.
    """

    def __init__(self, path: Path, options: Options, *, header: Header | None = None, no_alloc: bool = False) -> None:
        self._llama: Any = None
        self._lock = threading.RLock()  # guards the vocabulary; a finalizer may close the model within a call
        self.path = path
        self.header: Header = header_for(path, options) if header is None else header
        llama = library.bindings()
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = options.gpu_layers
        split = options.split and (c.c_float * MOST_DEVICES)(*options.split)  # the model copies it
        params.tensor_split = c.cast(split, c.POINTER(c.c_float)) if split else None
        params.use_extra_bufts = options.repack
        params.no_alloc = no_alloc
        maps = options.maps_weights and not no_alloc
        params.load_mode = llama.LLAMA_LOAD_MODE_MMAP if maps else llama.LLAMA_LOAD_MODE_NONE
        n_streamed = options.n_streamed(self.header.n_layer) if options.streams and not no_alloc else 0
        handle = c.c_void_p()
        progress = Callback(llama.llama_progress_callback, lambda _progress, _data: _give_back(), failed=False)
        if not (maps or no_alloc):
            params.progress_callback = progress.native
        try:
            with refusals(path, self.header), progress:
                library.call("edgekv_model_load", str(path).encode(), c.byref(params), n_streamed, c.byref(handle))
        except BaseException:
            llama.llama_model_free(handle)
            raise
        self._llama = llama
        self.handle = handle
        self._vocab = llama.llama_model_get_vocab(handle)
        self.n_vocab = int(llama.llama_vocab_n_tokens(self._vocab))
        self.n_ctx_train = int(llama.llama_model_n_ctx_train(handle))

    def close(self) -> None:
        """Free the model. Contexts over it must be freed first."""
        with self._lock:
            if self._llama is not None:
                self._llama.llama_model_free(self.handle)
                self._llama, self.handle = None, c.c_void_p()

    def _open(self) -> Any:
        """Return llama.cpp's functions. Raises SessionError if the model is closed."""
        if self._llama is None:
            raise SessionError("this runtime is closed; open another")
        return self._llama

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def streaming(self) -> structs.Streaming:
        """Return the share of weights that is streamed from the file, and the bytes and time of it so far."""
        streaming = structs.Streaming()
        library.call("edgekv_model_streaming", self.handle, c.byref(streaming))
        return streaming

    # ---- vocabulary ----

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of texts. It holds as long as the model is open."""
        metadata = self.header.metadata
        adds_space = metadata.get("tokenizer.ggml.model") == "llama" and bool(
            metadata.get("tokenizer.ggml.add_space_prefix", True)
        )
        templates = f"{self.header.chat_template}\n{self.header.tools_template}"
        markers = Markers(self.n_vocab, self._attributes, self._name, templates)
        return Tokenizer(self._tokenize, markers, self._names, adds_space=adds_space)

    def tokenize(
        self, text: str, *, begin: bool = False, special: bool = False, space_prefix: bool = False
    ) -> list[int]:
        """Return the tokens of a text.

        begin: with the tokens that the model wants before a text, and after it
        special, space_prefix: as of `Tokenizer.tokens`
        """
        tokens = self.tokenizer.tokens([text], special=special, space_prefix=space_prefix)
        return [*self.first, *tokens, *self.last] if begin else list(tokens)

    @property
    def first(self) -> tuple[int, ...]:
        """The token that the model wants before a text, as llama.cpp adds it; () = none."""
        return self._framing("bos")

    @property
    def last(self) -> tuple[int, ...]:
        """The token that the model wants after a text, as llama.cpp adds it; () = none."""
        return self._framing("eos")

    def _framing(self, name: str) -> tuple[int, ...]:
        with self._lock:
            llama = self._open()
            if not getattr(llama, f"llama_vocab_get_add_{name}")(self._vocab):
                return ()
            return (int(getattr(llama, f"llama_vocab_{name}")(self._vocab)),)

    def ends_in_name(self, text: str) -> bool:
        """Return True if the last token of a template's text has a name."""
        tokens = self.tokenize(text[-NAME_CHARS:], special=True)
        return bool(tokens) and bool(self._attributes(tokens[-1]) & NAMED)

    def _tokenize(self, text: str, special: bool) -> list[int]:
        raw = text.encode()
        room = len(raw) + 8
        while True:
            tokens = (c.c_int32 * room)()
            with self._lock:
                n = self._open().llama_tokenize(self._vocab, raw, len(raw), tokens, room, False, special)
            if n >= 0:
                return tokens[:n]
            room = -n

    def _attributes(self, token: int) -> int:
        """Return llama.cpp's llama_token_attr of a token."""
        with self._lock:
            return int(self._open().llama_vocab_get_attr(self._vocab, token))

    def _name(self, token: int) -> str:
        with self._lock:
            name: bytes = self._open().llama_vocab_get_text(self._vocab, token)
        return name.decode(errors="replace")

    def _names(self) -> Iterator[str]:
        """Yield the names of all tokens that llama.cpp finds by their names."""
        return (self._name(token) for token in range(self.n_vocab) if self._attributes(token) & NAMED)

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token. Control tokens have none, or with `special` their names."""
        room = 64
        while True:
            text = (c.c_char * room)()
            with self._lock:
                n = self._open().llama_token_to_piece(self._vocab, token, text, room, 0, special)
            if n >= 0:
                return text.raw[:n]
            room = -n

    def text(self, tokens: Iterable[int]) -> Iterator[str]:
        """Yield the text of tokens as they come, each character whole."""
        return codecs.iterdecode(map(self.piece, tokens), "utf-8", "replace")

    def addresses(self) -> tuple[int, int]:
        """Return the addresses of the vocabulary and of llama.cpp's tokenizer; they hold while the model is open."""
        tokenize = c.cast(library.load().llama_tokenize, c.c_void_p).value
        assert tokenize is not None
        return int(self._vocab), tokenize

    def is_end(self, token: int) -> bool:
        """Return True if a token ends a generation."""
        with self._lock:
            return bool(self._open().llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The tokens that end a generation."""
        return tuple(token for token in range(self.n_vocab) if self.is_end(token))

    def control_text(self, name: str) -> str:
        """Return the text of a token by llama.cpp's name for its use, as "bos"; empty if the model has none."""
        with self._lock:
            token = getattr(self._open(), f"llama_vocab_{name}")(self._vocab)
            return self._name(token) if token >= 0 else ""

    # ---- contexts ----

    def new_context(self, n_cells: int, options: Options, *, n_cells_max: int | None = None) -> Context:
        """A context of `n_cells` cells per head on average, at most `n_cells_max` in one head; None = equal heads."""
        n_cells_max = n_cells if n_cells_max is None else n_cells_max
        layout = structs.Layout(n_cells, n_cells_max, options.probe_cells, options.parallel)
        return Context(self, n_cells, options, layout)


def _give_back() -> bool:
    """Free the buffer that the last weight was repacked from; called before each weight is read."""
    process.return_freed_memory()
    return True


class Context:
    """A llama.cpp context with flash attention. Its model outlives it. It has outputs for a token and its draft, or for
    a token of every slot.

    Without a layout it has llama.cpp's own cache of n_cells, which edgekv does not compact.
    """

    def __init__(self, model: Model, n_cells: int, options: Options, layout: structs.Layout | None) -> None:
        self._llama: Any = None
        llama = library.bindings()
        params = self.llama_params(model, n_cells, options)
        self.handle = c.c_void_p()
        pointer = None if layout is None else c.byref(layout)
        library.call("edgekv_context_new", model.handle, c.byref(params), pointer, c.byref(self.handle))
        self._llama = llama
        self._n_threads = options.n_threads
        self.model = model

    def llama_params(self, model: Model, n_cells: int, options: Options) -> Any:
        """Return llama.cpp's parameters of such a context. Raises ConfigError if heads do not fit the cache type."""
        params = library.bindings().llama_context_params()
        kv_type, n_outputs = KV_TYPES[options.kv_type], max(options.parallel, 1 + options.n_draft)
        numbers = (kv_type, n_cells, options.n_ubatch, n_outputs, options.n_threads)
        library.call("edgekv_context_params_for", model.handle, *numbers, c.byref(params))
        return params

    def close(self) -> None:
        """Free the context."""
        if self._llama is not None:
            self._llama.llama_free(self.handle)
            self._llama, self.handle = None, c.c_void_p()

    def shape(self) -> structs.Shape:
        """Layers, heads, cells and types of the cache. Raises UnsupportedModelError if edgekv cannot run the model."""
        shape = structs.Shape()
        library.call("edgekv_context_shape", self.handle, c.byref(shape))
        return shape

    def memory(self) -> structs.Memory:
        """Return the bytes that the context holds, or would hold."""
        memory = structs.Memory()
        library.call("edgekv_context_memory", self.handle, c.byref(memory))
        return memory

    def decode_with(self, n_threads: int) -> None:
        """Decode single tokens with so many threads from now on. Batches still use all threads of the options."""
        self._llama.llama_set_n_threads(self.handle, n_threads, self._n_threads)

    def logits(self, row: int = -1) -> Any:
        """Return a pointer to a row's logits (n_vocab,) float32 in the last batch; -1 = the last row with logits."""
        return self._llama.llama_get_logits_ith(self.handle, row)

    def logits_array(self, row: int = -1) -> npt.NDArray[np.float32]:
        """Return the logits of a row as an array, valid until the next batch. The sampler reads it."""
        return np.ctypeslib.as_array(self.logits(row), (self.model.n_vocab,))
