"""Settings that a text is read under: the part of a configuration that a runtime is opened with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import edgekv
from edgekv.planning.planner import check_device

FULL = "full"  # a policy that evicts nothing
DEFAULT = "default"  # the policy that edgekv chooses for the model
OFF, QUESTION, TURN = "off", "question", "turn"
GONE = ("whole", "all", "all-whole")  # focuses that were, so that none of them is taken for a text to keep in mind
AS_GIVEN = 0  # 0 = do not cut the text
SPARE_CELLS = 1024  # cells of a full cache beyond the text: template, question, answer


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The model, policy and budget that a text is read under. Equal settings give equal results.

    policy: a policy's spec; "default" = what the runtime chooses for the model; "full" = a budget that holds
        everything, so that nothing is evicted
    budget: cells each (layer, KV head) keeps; means nothing under "full"
    focus: what is fed as a probe between blocks, scored by `focus_policy` (None = the default one): "off" = nothing,
        "question" = what is asked afterwards, or any other question; "turn" = nothing, but what is asked ends the turn
        that the text begins, and is read with it
    memory: ceiling of a process of its own in which each text is read; None = texts are read one after the other in
        this process, with the machine's memory for a ceiling, since it is the budget that is measured
    evict_every: generated tokens between two evictions; None = a block
    archive: limit of the archive that questions recall from, in bytes; None = what is evicted is forgotten
    The rest as in `edgekv.Options`.
    """

    model: str | None = None
    policy: str = DEFAULT
    budget: int = 512
    block: int = 128
    kv_type: str = "f16"
    focus: str = OFF
    focus_policy: str | None = None
    n_sink: int = 4
    recent: int | None = None
    reposition: str = "auto"
    evict_every: int | None = None
    memory: int | str | None = None
    archive: int | str | None = None

    @property
    def question(self) -> str | bool:
        """The `focus` of `Session.read` for a text that is read before any question is asked."""
        if self.holds_text or self.focus in (OFF, QUESTION, TURN):
            return False
        return self.focus

    @property
    def is_full(self) -> bool:
        """True if nothing is evicted."""
        return self.policy == FULL

    @property
    def holds_text(self) -> bool:
        """True if nothing is evicted while a text is read."""
        return self.is_full

    @property
    def name(self) -> str:
        """The policy, as tables and pictures call it."""
        if self.holds_text:
            return self.policy
        recalled = "" if self.archive is None else ", recalled"
        if self.focus == OFF:
            return self.policy + recalled
        if self.focus == TURN:
            return f"{self.policy}{recalled}, in one turn"
        how = f"focus: {self.focus}{recalled}"
        if self.focus_policy is not None:
            return f"{how}, {self.focus_policy}"
        return how

    @property
    def canonical(self) -> Setting:
        """The setting with the defaults of all fields that mean nothing to it."""
        return type(self)(**self.as_dict())

    @property
    def full_cache(self) -> Setting:
        """The setting of a full cache that reads the same."""
        return Setting(**asdict(self) | {"policy": FULL}).canonical

    @property
    def common(self) -> Setting:
        """The setting without the options that choose cells. Settings that are equal in it compare."""
        return Setting(**asdict(self) | {"policy": "", "focus": OFF, "focus_policy": None, "archive": None})

    def open(self, n_tokens: int, *, threads: int | None = None, **others: Any) -> edgekv.Runtime:
        """Open a runtime for a text of n_tokens; `others` replace its options. Raises what `edgekv.Runtime` does."""
        return edgekv.Runtime(self.model, threads=threads, **self.values(n_tokens) | others)

    def plan(self, n_tokens: int, *, threads: int | None = None, **others: Any) -> edgekv.Plan:
        """Plan such a runtime. Raises what `edgekv.plan` does."""
        return edgekv.plan(self.model, threads=threads, **self.values(n_tokens) | others)

    def options(self, n_tokens: int, *, threads: int | None = None, **others: Any) -> edgekv.Options:
        """Return the options of such a runtime. Raises what `edgekv.Options` does."""
        return edgekv.Options(threads=threads, **self.values(n_tokens) | others)

    def values(self, n_tokens: int) -> dict[str, Any]:
        """Return the options of a runtime for a text of n_tokens, by name."""
        memory = self.memory or "100%"
        common: dict[str, Any] = {
            "memory": memory,
            "block": self.block,
            "ubatch": self.block,
            "kv_type": self.kv_type,
            "repack": False,
            "swap_bytes": 0,  # a case has one session
        }
        if self.holds_text:
            whole = {"policy": "sink", "budget": n_tokens + SPARE_CELLS, "focus": False, "archive": "off"}
            return common | whole | {"reposition": "never", "allow_beyond_trained": True}
        return common | {
            "policy": None if self.policy == DEFAULT else self.policy,
            "budget": self.budget,
            "focus": self.focus not in (OFF, TURN),
            "focus_policy": None if self.focus in (OFF, TURN) else self.focus_policy,
            "n_sink": self.n_sink,
            "recent": self.recent,
            "reposition": self.reposition,
            "evict_every": self.evict_every,
            "archive": "off" if self.archive is None else self.archive,
        }

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for keys and JSON.

        Fields that mean nothing to a full cache are left out, and evict_every, memory and archive if they are None.
        """
        fields = asdict(self)
        for name in ("evict_every", "memory", "archive"):
            if fields[name] is None:
                del fields[name]
        if self.holds_text:
            return {name: fields[name] for name in ("model", "policy", "block", "kv_type", "memory") if name in fields}
        return fields


class OpenRuntime:
    """The runtime of the last setting, kept for the next case of it. Close it, or use it in `with`.

    gpu_layers: layers that lie on a GPU. Raises ConfigError if there are to be any, and there is no GPU.
    """

    def __init__(self, *, threads: int | None = None, gpu_layers: int = 0) -> None:
        check_device(edgekv.Options(gpu_layers=gpu_layers))  # here, since a setting that is refused counts as measured
        self.threads, self.gpu_layers = threads, gpu_layers
        self._setting: Setting | None = None
        self._n_tokens = 0
        self._runtime: edgekv.Runtime | None = None

    def get(self, setting: Setting, n_tokens: int) -> edgekv.Runtime:
        """Return a runtime of this setting for at most n_tokens, with no session open. Raises what `Runtime` does."""
        fits = not setting.holds_text or n_tokens <= self._n_tokens
        if self._runtime is None or self._setting != setting or not fits:
            self.close()
            self._runtime = setting.open(n_tokens, threads=self.threads, gpu_layers=self.gpu_layers)
            self._setting, self._n_tokens = setting, n_tokens
        return self._runtime

    def close(self) -> None:
        """Free the runtime."""
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = self._setting = None

    def __enter__(self) -> OpenRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
