"""Speed and memory of one setting, or of llama.cpp itself, while it reads a prompt and generates after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from edgekv.binding.model import Context, Model
from edgekv.errors import CeilingError
from edgekv.generation.sampler import GREEDY, Sampler
from edgekv.models.catalog import find_model
from edgekv.options import Options
from edgekv.planning.plan import Plan
from edgekv.prompt.text import Prompt

from .fresh import in_fresh_process
from .setting import FULL, Setting
from .stock import Peer

STOCK, ALIKE = "stock", "alike"
PEERS = {STOCK: "llama.cpp at its defaults", ALIKE: "llama.cpp set alike"}
AS_INSTALLED: dict[str, Any] = {"repack": None, "ubatch": None}  # options that edgekv chooses here
WARM_UP_CHARS = 256  # characters of the prompt, read before anything counts: weights come in, buffers are touched


@dataclass(frozen=True, kw_only=True)
class SpeedCase:
    """A case: one measurement in one process.

    policy: a policy's spec; "full" = edgekv with nothing evicted; "stock" = llama.cpp at its own defaults, "alike" =
        llama.cpp with edgekv's batches, cache type, threads and order of weights, both with its own cache
    budget: cells each (layer, KV head) keeps; None for the three that keep everything
    block, kv_type: mean nothing under "stock"
    n_tokens, n_generate: length of the prompt, and tokens generated after it
    """

    model: str | None = None
    policy: str
    budget: int | None
    block: int
    kv_type: str = "f16"
    n_tokens: int
    n_generate: int
    threads: int | None = None

    @property
    def name(self) -> str:
        """Return the case's name in a table of one prompt and block."""
        if self.policy in PEERS:
            return PEERS[self.policy]
        return self.policy if self.budget is None else f"{self.policy}, {self.budget:,}"

    @property
    def setting(self) -> Setting:
        """The setting that edgekv reads with."""
        setting = Setting(model=self.model, policy=self.policy, block=self.block, kv_type=self.kv_type)
        return setting if self.budget is None else replace(setting, budget=self.budget)

    def beside(self, peer: str) -> SpeedCase:
        """The case of llama.cpp ("stock" or "alike") that this one is compared with."""
        return replace(self, policy=peer, budget=None)

    @property
    def peer(self) -> Peer:
        """The llama.cpp of a case of "stock" or "alike"."""
        if self.policy == STOCK:
            return Peer.at_defaults(self.threads)
        plan = self.beside(FULL).plan()
        return Peer.alike(Options(block=self.block, kv_type=self.kv_type, threads=self.threads, repack=plan.repack))

    def plan(self) -> Plan:
        """Plan the case for edgekv. Raises what `edgekv.plan` does."""
        return self.setting.plan(self.n_tokens + self.n_generate, threads=self.threads, **AS_INSTALLED)

    def obstacle(self) -> str | None:
        """Return why this machine cannot run it; None = it can. Raises ConfigError for values that cannot work."""
        try:
            if self.policy in PEERS:
                return self.peer.obstacle(find_model(self.model), self.n_tokens + self.n_generate)
            self.plan()
        except CeilingError as error:
            return str(error)
        return None


def measure(case: SpeedCase, text: str) -> dict[str, Any]:
    """Read a text and generate after it, in a fresh process.

    Returns, in seconds, "prefill_s" and "first_sample_s", which together are "ttft_s"; "score_s" and "compact_s", which
    are part of the prefill; and "decode_s" for all generated tokens. Returns also "prompt_tokens", "evictions" while
    reading, "prefill_tok_per_s", "decode_tok_per_s", and "peak_bytes", the most that the process ever held.

    Every token after the prompt is the most likely one. The end of a reply is ignored, so all cases of one length do
    the same work. Raises WorkerError if the process is killed, and the errors of a `Runtime` and a reply.
    """
    return in_fresh_process(_peer if case.policy in PEERS else _edgekv, case, text)


def _edgekv(case: SpeedCase, text: str) -> dict[str, Any]:
    with case.setting.open(case.n_tokens + case.n_generate, threads=case.threads, **AS_INSTALLED) as runtime:
        with runtime.session() as session:
            _exhaust(session.generate(text[:WARM_UP_CHARS], max_tokens=2))
        with runtime.session() as session:
            _exhaust(session.generate(text, max_tokens=1))
            stats = session.stats
            decode_s = _generate(case, runtime.context, runtime.block_loop.step)
    return _figures(
        case,
        n_prompt=stats.read_tokens,
        prefill_s=stats.prefill_s,
        first_sample_s=stats.ttft_s - stats.prefill_s,
        decode_s=decode_s,
        evictions=stats.evictions,
        score_s=stats.score_s,
        compact_s=stats.compact_s,
    )


def _peer(case: SpeedCase, text: str) -> dict[str, Any]:
    peer = case.peer
    with Model(find_model(case.model), peer.options) as model:
        prompt = Prompt(model, begin=True).content(text)
        n_prompt = prompt.count()
        with closing(peer.loop(model, n_prompt + case.n_generate)) as loop:
            loop.read(Prompt(model, begin=True).content(text[:WARM_UP_CHARS]).tokens())
            loop.step(loop.sample())
            started = time.perf_counter()
            loop.read(prompt.tokens())
            read = time.perf_counter()
            loop.sample()
            sampled = time.perf_counter()
            decode_s = _generate(case, loop.context, loop.step)
    return _figures(case, n_prompt=n_prompt, prefill_s=read - started, first_sample_s=sampled - read, decode_s=decode_s)


def _generate(case: SpeedCase, context: Context, feed: Callable[[int], None]) -> float:
    """Sample and feed a token, again and again; return the seconds that it took."""
    with closing(Sampler(GREEDY)) as sampler:
        started = time.perf_counter()
        for _ in range(case.n_generate):
            feed(sampler.sample(context))
        return time.perf_counter() - started


def _figures(
    case: SpeedCase,
    *,
    n_prompt: int,
    prefill_s: float,
    first_sample_s: float,
    decode_s: float,
    evictions: int = 0,
    score_s: float = 0.0,
    compact_s: float = 0.0,
) -> dict[str, Any]:
    return {
        "prompt_tokens": n_prompt,
        "evictions": evictions,
        "ttft_s": prefill_s + first_sample_s,
        "prefill_s": prefill_s,
        "first_sample_s": first_sample_s,
        "score_s": score_s,
        "compact_s": compact_s,
        "decode_s": decode_s,
        "prefill_tok_per_s": n_prompt / prefill_s,
        "decode_tok_per_s": case.n_generate / decode_s,
    }


def _exhaust(pieces: Iterator[str]) -> None:
    for _ in pieces:
        pass
