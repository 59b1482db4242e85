"""The options of a runtime: one frozen, validated object."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from .arguments import check_flag, check_one_of, check_range, path_of
from .errors import BudgetError, ConfigError
from .memory.sizes import (
    parse_archive,
    parse_ceiling,
    parse_device_ceilings,
    parse_share,
    parse_size,
    parse_size_or_none,
)
from .policies import Policy, parse_policy

if TYPE_CHECKING:
    from .addresses import Server

RECENT = 32  # newest tokens that are protected by default, unless a probe scores
MOST_CELLS = 1 << 30  # the largest budget
REPOSITION = ("auto", "always", "never")
MOST_BLOCK = 4096  # tokens
UBATCH = 128  # tokens; larger ones read no faster, and their activations take memory
GPU_UBATCH = 512  # the same on a GPU of this machine
PROMPT_LOOKUP = ("auto", "on", "off")
SWAP_FULL = ("refuse", "evict")
MOST_THREADS = 512  # GGML_MAX_N_THREADS
MOST_PARALLEL = 64  # EDGEKV_MOST_SLOTS
MOST_DEVICES = 16  # devices to divide layers over: llama_max_devices()
RPC_TIMEOUT_S, MOST_TIMEOUT_S = 600.0, 7 * 24 * 3600.0
DRAFT_TOKENS = 15  # tokens of the longest draft; with the token before it, as many rows as attention takes one by one
SHORT_DRAFT = 3  # tokens of a draft, however small a batch is
DEFAULT_MEMORY = "256MiB"
DEFAULT_ARCHIVE = "auto"
KV_TYPES = {"f16": 1, "q8_0": 8, "q4_0": 2}  # enum ggml_type
KV_NAMES = {number: name for name, number in KV_TYPES.items()}


def default_threads() -> int:
    """Return one thread for every processor that this process may use, but at most MOST_THREADS."""
    n_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n_processors, MOST_THREADS)


# what to give in place of options that other libraries have
MEANT = {
    **dict.fromkeys(
        ("n_ctx", "num_ctx", "ctx_size", "context_length", "max_model_len", "max_seq_len"),
        "memory= says how many cells there are, and budget= names them; a text of any length fits",
    ),
    **dict.fromkeys(("model_path", "path", "filename"), "give the model first, as in Runtime('model.gguf')"),
    **dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "seed", "max_tokens", "stop"), "give it to a reply"),
    **dict.fromkeys(("type_k", "type_v", "cache_type"), "give kv_type="),
    "n_gpu_layers": "give gpu_layers=",
    "n_threads": "give threads=",
    "n_batch": "give block=",
    "n_ubatch": "give ubatch=",
    "use_mmap": "give mmap=",
    "device_map": "give gpu_layers=",
    "verbose": "the environment variable EDGEKV_LOG=1 shows llama.cpp's log",
    "system": "give it to Runtime.session",
}

DEFAULT_POLICY = "keydiff(rope=off)"  # chosen by measurement (docs/choosing-a-policy.md)
TURNED_POLICY = "keydiff"  # the default for models whose keys cannot be turned back
DEFAULT_FOCUS = "snapkv(window=64, kernel=61, aggregate=max)"  # what scores by a probe


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a runtime. Raises ConfigError (PolicyError, BudgetError) for values that cannot work.

    Where memory, policy, block, kv_type, repack, resident, gpu_layers or tensor_split is None or not given, `Runtime`
    and `plan` choose.

    memory: ceiling of the whole process: bytes, a size such as "256MiB", or "25%" of the memory that it may use; None =
        256 MiB for a model that comes with edgekv; for others what their trained context needs, at most half of what is
        free
    device_memory: ceiling of what lies on the one device, bytes or a size; or ceilings of devices by name, as a mapping
        or "RPC0=2GiB,RPC1=1GiB"; None = no ceiling, or of a server's device what it has free
    gpu_context: what a driver takes of each GPU of this machine beside all buffers, bytes or a size; None = 524 MiB of
        an NVIDIA GPU, as measured on an H200, and nothing of others
    policy: spec or Policy that scores the cells; None = "keydiff", or what `Runtime` and `plan` choose for the model
    budget: cells that each (layer, KV head) keeps; None = as many as fit the ceiling
    block: tokens fed between two compactions, and the spare cells that take them
    ubatch: tokens decoded at once, at most a block; None = at most 128, on a GPU of this machine 512
    kv_type: "f16", "q8_0" or "q4_0"
    threads: None = one for every processor
    parallel: sessions that share each step, each with cells of its own; the others are swapped out
    n_sink: first positions that are never evicted
    recent: newest tokens that are never evicted; None = 32, but none while a probe scores
    evict_every: generated tokens between two evictions; None = a block, 1 = as in the papers
    focus: read files with the question as a probe between blocks; a probe takes cells of its own
    focus_policy: what scores by the probe's attention; None = `policy` if it reads queries, else `DEFAULT_FOCUS`
    probe_tokens: longest probe; of a longer question only the last tokens are fed
    reposition: turn kept keys to adjacent RoPE positions, so that a text may be longer than the trained context:
        "auto" = if a text is longer than half of it, "always" = at every eviction, "never"
    prompt_lookup: "on" = decode several tokens at once where the text suggests them and that pays; "off"; "auto" = "on"
        where the same is said to the bit, else "off"
    chat_template: file of a template in Jinja that messages are read in; None = the one that the model carries
    thinking: has models that can begin a reply with reasoning do so, or not; None = as their chat template does
    grammars: replies may follow a grammar or a JSON schema, or call tools. True = the plan counts the memory for that;
        None = cells are given up for it when the first such reply begins; False = such replies are refused
    allow_beyond_trained: feed positions past the trained context if keys are not repositioned
    repack: keep weights in the processor's own order, if that is faster
    mmap: map the weights from the file; None = only if all of them lie in memory as they are there; with repack they
        would be held twice
    resident: share of the layers whose weights stay in memory, 0 to 1 or as in "50%"; those of the others are read from
        the file whenever their turn comes; None = all of them, or as many as leave room for 2,048 cells
    gpu_layers: layers to put on devices, of which one more than the model has is the output matrix: GPUs in builds that
        have one, and those of `rpc`, which get what their ceilings hold if this is left open
    rpc: servers that lend their devices, HOST:PORT as a list or between commas; needs `isolated`
    rpc_timeout: seconds after which a server that says nothing counts as gone; one graph has to be computed in them
    tensor_split: in which proportions devices get layers, servers first, as a list or "3,1"
    isolated: hold the model in a worker process
    archive: the most that the rows of each session's tokens take on the disk, bytes or a size. A prompt recalls what
        it needs of them. "auto" = a quarter of what is free on that disk, and no archive if the folder lies on none;
        "off" = what is evicted is forgotten
    swap_memory: memory for sessions that are swapped out while another has the cells, bytes or a size; None = what the
        plan leaves free
    swap_dir: folder for archives, and for swapped-out sessions that have no room in memory; None = the one that TMPDIR
        names
    swap_bytes: the most that they may take there, bytes or a size; 0 = nothing is swapped out to the disk, None = no
        limit
    yields: share of the ceiling, 0 to 1 or as in "25%", that is given up by itself while the system is short of memory,
        and comes back slowly; None = the ceiling stays
    swap_full: what to do if both are full: "refuse" = raise SwapError, "evict" = evict the least recently used session
    """

    memory: int | str = DEFAULT_MEMORY
    device_memory: int | str | Mapping[str, int | str] | None = None
    gpu_context: int | str | None = None
    policy: str | Policy | None = None
    budget: int | None = None
    block: int = 128
    ubatch: int | None = None
    kv_type: str = "f16"
    threads: int | None = None
    parallel: int = 1
    n_sink: int = 4
    recent: int | None = None
    evict_every: int | None = None
    focus: bool = True
    focus_policy: str | Policy | None = None
    probe_tokens: int = 64
    reposition: str = "auto"
    prompt_lookup: str = "auto"
    chat_template: str | os.PathLike[str] | None = None
    thinking: bool | None = None
    grammars: bool | None = None
    allow_beyond_trained: bool = False
    repack: bool = False
    mmap: bool | None = None
    resident: float | str | None = None
    gpu_layers: int = 0
    rpc: str | Sequence[str] | None = None
    rpc_timeout: float = RPC_TIMEOUT_S
    tensor_split: str | Sequence[float] | None = None
    isolated: bool = False
    archive: int | str = DEFAULT_ARCHIVE
    swap_memory: int | str | None = None
    swap_dir: str | os.PathLike[str] | None = None
    swap_bytes: int | str | None = None
    swap_full: str = "refuse"
    yields: float | str | None = None

    ceiling_bytes: int = field(init=False)
    device_ceiling_bytes: int | None = field(init=False)
    device_ceilings: tuple[tuple[str, int], ...] = field(init=False)
    gpu_context_bytes: int | None = field(init=False)
    servers: tuple[Server, ...] = field(init=False)
    split: tuple[float, ...] | None = field(init=False)
    parsed_policy: Policy = field(init=False)
    parsed_focus: Policy = field(init=False)
    n_threads: int = field(init=False)
    archive_bytes: int | None = field(init=False)
    swap_memory_bytes: int | None = field(init=False)
    swap_dir_bytes: int | None = field(init=False)

    def __post_init__(self) -> None:
        ceilings = parse_device_ceilings(self.device_memory)
        device_ceiling = None
        if isinstance(self.device_memory, Mapping):
            object.__setattr__(self, "device_memory", ",".join(f"{name}={size}B" for name, size in ceilings))
        elif self.device_memory is not None and not ceilings:
            device_ceiling = parse_size(self.device_memory)
        object.__setattr__(self, "ceiling_bytes", parse_ceiling(self.memory))
        object.__setattr__(self, "device_ceiling_bytes", device_ceiling)
        object.__setattr__(self, "device_ceilings", ceilings)
        object.__setattr__(self, "gpu_context_bytes", parse_size_or_none(self.gpu_context))
        object.__setattr__(self, "servers", self._servers())
        object.__setattr__(self, "rpc", ",".join(map(str, self.servers)) or None)
        object.__setattr__(self, "resident", parse_share("resident", self.resident))
        object.__setattr__(self, "yields", parse_share("yields", self.yields))
        object.__setattr__(self, "split", _split(self.tensor_split))
        object.__setattr__(self, "tensor_split", self.split)
        object.__setattr__(self, "parsed_policy", parse_policy(TURNED_POLICY if self.policy is None else self.policy))
        object.__setattr__(self, "parsed_focus", self._focus())
        object.__setattr__(self, "n_threads", default_threads() if self.threads is None else self.threads)
        object.__setattr__(self, "archive_bytes", parse_archive(self.archive))
        object.__setattr__(self, "swap_memory_bytes", parse_size_or_none(self.swap_memory))
        object.__setattr__(self, "swap_dir_bytes", parse_size_or_none(self.swap_bytes))
        for name in ("swap_dir", "chat_template"):  # a worker runs in a folder of its own
            if getattr(self, name) is not None:
                object.__setattr__(self, name, os.path.abspath(path_of(name, getattr(self, name))))
        for name in ("focus", "allow_beyond_trained", "repack", "isolated"):
            check_flag(name, getattr(self, name))
        for name in ("mmap", "thinking", "grammars"):
            check_flag(name, getattr(self, name), may_be_open=True)
        check_range("block", self.block, 1, MOST_BLOCK)
        check_range("ubatch", self.n_ubatch, 1, self.block)
        check_range("threads", self.n_threads, 1, MOST_THREADS)
        check_range("parallel", self.parallel, 1, MOST_PARALLEL)
        check_range("n_sink", self.n_sink, 0, 1 << 20)
        check_range("recent", 0 if self.recent is None else self.recent, 0, 1 << 20)
        check_range("evict_every", self.spare_cells, 1, self.block)
        check_range("probe_tokens", self.probe_tokens, 1, 1024)
        check_range("gpu_layers", self.gpu_layers, 0, 1 << 20)
        check_one_of("kv_type", self.kv_type, tuple(KV_TYPES))
        check_one_of("reposition", self.reposition, REPOSITION)
        check_one_of("prompt_lookup", self.prompt_lookup, PROMPT_LOOKUP)
        check_one_of("swap_full", self.swap_full, SWAP_FULL)
        if self.yields and (self.gpu_layers or self.rpc):
            raise ConfigError(
                f"yields={self.yields} moves the ceiling, which stays as it is with layers on a device or another "
                "machine; leave yields out, or gpu_layers and rpc"
            )
        if self.rpc and not self.isolated:
            raise ConfigError(
                f"rpc={self.rpc} needs isolated=True, a model in a worker process: ggml's client of RPC ends its "
                "process when a server goes; add isolated=True"
            )
        if self.rpc and self.mmap:
            raise ConfigError("mmap=True with rpc would hold what is sent to servers as well; leave mmap out")
        if (
            isinstance(self.rpc_timeout, bool)
            or not isinstance(self.rpc_timeout, (int, float))
            or not 0 < self.rpc_timeout <= MOST_TIMEOUT_S
        ):
            raise ConfigError(
                f"rpc_timeout={self.rpc_timeout!r} is not possible; give seconds, more than 0 and at most "
                f"{MOST_TIMEOUT_S:g}"
            )
        if self.repack and self.mmap:
            raise ConfigError("mmap=True with repack=True would hold the weights twice; leave one of them out")
        if self.streams:
            reads = f"resident={self.resident} reads weights from the file into memory of its own"
            self._check_beside(reads, "mmap", "gpu_layers", "rpc")
        if self.parallel > self.n_ubatch:  # a step has a token of each
            name = "block" if self.ubatch is None else "ubatch"
            raise ConfigError(
                f"parallel={self.parallel} takes as many tokens at once, but {name}={self.n_ubatch}; lower parallel, "
                f"or raise {name}"
            )
        if self.parallel > 1:
            shares = f"parallel={self.parallel} shares steps among sessions in this process, on its processor"
            self._check_beside(shares, "isolated", "gpu_layers", "rpc", remedy="one of them")
        if self.budget is not None:
            check_range("budget", self.budget, 1, MOST_CELLS)
            self.check_budget(self.budget)

    def _check_beside(self, what: str, *names: str, remedy: str = "") -> None:
        """Raise ConfigError if one of these options is given. what: does not go with it; remedy: "" = leave it out"""
        for name in names:
            if value := getattr(self, name):
                raise ConfigError(f"{what}, which {name}={value} does not go with; leave {remedy or name} out")

    def n_streamed(self, n_layers: int) -> int:
        """Return how many of a model's layers are read from the file whenever their turn comes."""
        return 0 if self.resident is None else n_layers - round(float(self.resident) * n_layers)

    @property
    def streams(self) -> bool:
        """True if the weights of some layers are read whenever their turn comes."""
        return self.resident is not None and self.resident != 1

    @property
    def may_stream(self) -> bool:
        """True if nothing named holds the weights in another way than streaming needs."""
        return not (self.mmap or self.gpu_layers or self.rpc)

    def _servers(self) -> tuple[Server, ...]:
        """Return the servers of `rpc`."""
        if self.rpc is None:
            return ()
        from .addresses import parse_servers  # takes memory, and few runtimes need it

        return tuple(parse_servers(self.rpc))

    def _focus(self) -> Policy:
        """Return the policy that scores by a probe: the one named for it, or the runtime's own if it reads queries."""
        own = self.parsed_policy
        if self.focus_policy is None:
            return own if "queries" in own.reads else parse_policy(DEFAULT_FOCUS)
        policy = parse_policy(self.focus_policy)
        if "queries" not in policy.reads:
            raise ConfigError(
                f"focus_policy={policy.spec} reads no queries; give one that does, such as {DEFAULT_FOCUS}"
            )
        if self.focus and own.base.accumulates and policy != own:
            raise ConfigError(
                f"focus_policy={policy.spec} with policy={own.spec}, which adds to scores that stay with the cells "
                "and cannot go on from another's; leave focus_policy out, or choose a policy that scores anew each "
                "time, such as keydiff or snapkv"
            )
        return policy

    @property
    def maps_weights(self) -> bool:
        """True if the weights are mapped from the file."""
        if self.streams:
            return False
        return not (self.repack or self.rpc) if self.mmap is None else self.mmap

    @property
    def swaps_to_disk(self) -> bool:
        """True if sessions may be swapped out to the disk."""
        return self.swap_dir_bytes != 0

    @property
    def snapshot_copies(self) -> int:
        """Copies of a snapshot in the model's process: of a worker, the cells, and the message that they travel in."""
        return 2 if self.isolated else 1

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy that may score: the policy itself and, with focus, the one that scores by a probe."""
        return (self.parsed_policy, self.parsed_focus) if self.focus else (self.parsed_policy,)

    @cached_property
    def probe_cells(self) -> int:
        """Cells beyond budget and block that a probe takes while it is scored."""
        return self.probe_tokens if self.focus or self.archives else 0

    @property
    def n_ubatch(self) -> int:
        """Tokens decoded at once."""
        if self.ubatch is not None:
            return self.ubatch
        return min(self.block, self.most_ubatch)

    @property
    def most_ubatch(self) -> int:
        """The most tokens that are decoded at once, however long a block is."""
        return self.ubatch or (GPU_UBATCH if self.gpu_layers and not self.rpc else UBATCH)

    @cached_property
    def n_draft(self) -> int:
        """Tokens of a draft, which are decoded before they are accepted; 0 while a plan has yet to settle "auto"."""
        if self.prompt_lookup != "on":
            return 0
        return min(max(SHORT_DRAFT, min(DRAFT_TOKENS, self.n_ubatch // 8 - 1)), self.n_ubatch - 1)

    @property
    def archives(self) -> bool:
        """True if every session has an archive."""
        return self.archive_bytes != 0

    @property
    def swap_folder(self) -> str | None:
        """The folder of swapped-out sessions and archives; None = that of TMPDIR."""
        return None if self.swap_dir is None else str(self.swap_dir)

    @cached_property
    def spare_cells(self) -> int:
        """Cells that generation fills before it evicts."""
        return self.block if self.evict_every is None else self.evict_every

    @property
    def sinks(self) -> int:
        """Protected first positions: the policy's own number if it has one."""
        return self.parsed_policy.sinks(self.n_sink)

    def recent_cells(self, budget: int, *, probed: bool = False) -> int:
        """Return the number of protected newest cells under a budget. probed: a probe scores"""
        if probed:
            return self.recent or 0
        recent = RECENT if self.recent is None else self.recent
        return max(recent, self.parsed_policy.recent(budget))

    def protected_cells(self, budget: int, n_pinned: int = 0) -> int:
        """Return how many cells under a budget no policy may evict."""
        return self.sinks + self.recent_cells(budget) + n_pinned

    def check_budget(self, budget: int, n_pinned: int = 0) -> None:
        """Raise BudgetError unless the budget holds the protected cells and one more."""
        least = self.least_budget(budget, n_pinned)
        if least > budget:
            remedy = f"raise the budget to at least {least} or protect fewer"
            raise BudgetError(f"{self._too_small(budget, n_pinned)}; {remedy}")

    def least_budget(self, budget: int = 1, n_pinned: int = 0) -> int:
        """Return the least budget, from `budget` on, that holds the protected cells and one more.

        Raises BudgetError if none does, because the policy's window is always the whole budget.
        """
        if self.recent_cells(MOST_CELLS) >= MOST_CELLS:
            raise BudgetError(f"{self._too_small(budget, n_pinned)}, and no budget does; protect fewer")
        while (least := self.protected_cells(budget, n_pinned) + 1) > budget:
            budget = least
        return budget

    def _too_small(self, budget: int, n_pinned: int) -> str:
        pins = f" and {n_pinned} pinned tokens" if n_pinned else ""
        recent = self.recent_cells(budget)
        return f"budget={budget} does not hold the protected cells: {self.sinks} sinks, {recent} recent{pins}"


def _split(tensor_split: str | Sequence[float] | None) -> tuple[float, ...] | None:
    """Return the proportions of devices. Raises ConfigError."""
    if tensor_split is None:
        return None
    given = tensor_split.split(",") if isinstance(tensor_split, str) else tensor_split
    try:
        split = tuple(float(part) for part in given)
    except (TypeError, ValueError):
        split = ()
    if not 0 < len(split) <= MOST_DEVICES or not all(0 <= part < math.inf for part in split) or not sum(split):
        raise ConfigError(
            f"tensor_split={tensor_split!r} is not possible; give up to {MOST_DEVICES} numbers from 0 on, not all of "
            "them 0, as in 3,1"
        )
    return split
