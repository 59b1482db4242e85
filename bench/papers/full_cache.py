"""A full cache beside the cells of a runtime: what the same weights say with nothing evicted."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import edgekv
from edgekv.binding import library, structs
from edgekv.binding.cache import Cache
from edgekv.binding.model import Context, Model
from edgekv.cells.block_loop import BlockLoop
from edgekv.evals.setting import Setting
from edgekv.planning.estimate import cache_params_of


@dataclass(frozen=True)
class FullCache:
    """A full cache that a text is fed to, as to a runtime (`tokens.Feedable`)."""

    model: Model
    context: Context
    block_loop: BlockLoop


@contextmanager
def full_cache(runtime: edgekv.Runtime, setting: Setting, n_tokens: int) -> Iterator[FullCache]:
    """Open a cache for n_tokens without eviction, over the weights that a runtime of this setting has loaded.

    An oracle's setting has room for its probe as well. It takes what the full cache of a `Setting` takes, which the
    runtime's plan does not count. Raises NativeError if there is no memory for it.
    """
    if not setting.holds_text:
        setting = setting.full_cache
    options = setting.options(n_tokens, threads=runtime.options.threads, gpu_layers=runtime.options.gpu_layers)
    assert options.budget is not None
    model = runtime.model
    layout = structs.Layout()
    library.call("edgekv_layout_for", options.budget, options.block, options.probe_cells, 0, 0, ctypes.byref(layout))
    with (
        closing(Context(model, layout.n_cells, options, layout)) as context,
        closing(Cache(context, cache_params_of(options))) as cache,
    ):
        yield FullCache(model, context, BlockLoop(cache, options, options.budget, model.n_ctx_train))
