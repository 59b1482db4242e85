"""The plan of a runtime: its settings, and every byte that it will hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from edgekv.binding.row_archive import SEGMENT_TOKENS
from edgekv.options import Options

from .device_shares import DeviceShare


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes of everything that is resident at the peak, in the order of struct edgekv_parts. docs/plans.md says what
    each is.
    """

    python: int
    vocabulary: int
    graphs: int
    rounding: int
    weights: int
    repacking: int
    slots: int
    kv: int
    state: int
    compute: int
    outputs: int
    workspace: int
    bookkeeping: int
    swap: int
    grammars: int
    margin: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and settings of a runtime, before it is loaded.

    policy: spec of the policy
    n_cells: cells allocated per head, budget_cells + block + those of a probe
    n_cells_max: the most cells that one head may hold, if heads share their cells or a recall fills them
    even_cells: all heads keep equally many cells; False = the policy divides them
    cell_bytes: bytes of one cell in every head of every layer
    session_bytes: the most bytes that one session takes as a snapshot, as it does while it is swapped out
    repack, mmap: how the weights are loaded
    prompt_lookup: "on" or "off"
    n_layers, n_streamed: layers of the model, and of those the ones whose weights are read whenever their turn comes
    streamed_bytes: bytes of their weights, which are read for a batch of tokens that choose all experts
    token_bytes: bytes of them that are read for one token, which chooses a few of the experts
    archive: "off", "auto" or a size, as of the options; archive_obstacle: why "auto" is off; "" = it is not
    archive_bytes: the most bytes that the archive of a session takes on the disk; with "auto", as the disk is now
    archive_token_bytes: bytes that a token takes there; 0 = sessions have no archive
    gpu_layers, tensor_split: how layers are divided over devices
    devices: bytes on each device
    """

    model: Path
    ceiling_bytes: int
    policy: str
    budget_cells: int
    block: int
    kv_type: str
    repack: bool
    mmap: bool
    prompt_lookup: str
    archive: int | str
    archive_obstacle: str
    gpu_layers: int
    tensor_split: tuple[float, ...] | None
    n_cells: int
    n_cells_max: int
    even_cells: bool
    cell_bytes: int
    session_bytes: int
    n_ctx_train: int
    n_layers: int
    n_streamed: int
    streamed_bytes: int
    token_bytes: int
    devices: tuple[DeviceShare, ...]
    parts: Parts
    archive_token_bytes: int = 0
    archive_bytes: int = field(default=0, compare=False)  # what is free on a disk changes

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all cells, on any device. Their bytes do not depend on how heads share them."""
        return self.n_cells * self.cell_bytes

    @property
    def archive_tokens(self) -> int:
        """Tokens that the archive of a session has room for; it grows by whole segments."""
        segment_bytes = SEGMENT_TOKENS * self.archive_token_bytes
        return self.archive_bytes // segment_bytes * SEGMENT_TOKENS if segment_bytes else 0

    @property
    def resident(self) -> float:
        """Share of the layers whose weights stay in memory."""
        return 1 - self.n_streamed / max(1, self.n_layers)

    @property
    def peak_bytes(self) -> int:
        """Planned peak of the whole process."""
        return self.parts.total

    @property
    def excess_bytes(self) -> int:
        """Bytes over the ceiling of the process; 0 if it fits."""
        return max(0, self.peak_bytes - self.ceiling_bytes)

    @property
    def device_bytes(self) -> int:
        """Bytes on all devices."""
        return sum(share.total for share in self.devices)

    @property
    def device_excess_bytes(self) -> int:
        """Bytes over the ceilings of devices, summed; 0 if all of them fit, or have none."""
        return sum(share.excess_bytes for share in self.devices)

    @property
    def spare_bytes(self) -> int:
        """Bytes that are left under the tightest ceiling, of the process or of a device; negative if it is over."""
        devices = [s.allowed_bytes - s.total for s in self.devices if s.allowed_bytes is not None]
        return min([self.ceiling_bytes - self.peak_bytes, *devices])

    @property
    def fits(self) -> bool:
        """Return True if the plan fits all ceilings."""
        return self.spare_bytes >= 0

    @classmethod
    def of(cls, options: Options, **estimated: Any) -> Plan:
        """Make the plan of options that name a budget. estimated: all fields that are not options."""
        assert options.budget is not None
        return cls(
            ceiling_bytes=options.ceiling_bytes,
            policy=options.parsed_policy.spec,
            budget_cells=options.budget,
            block=options.block,
            kv_type=options.kv_type,
            repack=options.repack,
            mmap=options.maps_weights,
            prompt_lookup="on" if options.n_draft else "off",
            archive=options.archive if options.archives else "off",
            archive_obstacle="",
            gpu_layers=options.gpu_layers,
            tensor_split=options.split,
            **estimated,
        )

    def resolve(self, options: Options) -> Options:
        """Return the options, with the planned values in place of open ones."""
        same = options.parsed_policy.spec == self.policy  # the option may be an object that no spec spells
        return replace(
            options,
            memory=options.memory if options.ceiling_bytes == self.ceiling_bytes else self.ceiling_bytes,
            policy=options.policy if same else self.policy,
            budget=self.budget_cells,
            block=self.block,
            kv_type=self.kv_type,
            repack=self.repack,
            mmap=self.mmap,
            resident=self.resident,
            prompt_lookup=self.prompt_lookup if options.prompt_lookup == "auto" else options.prompt_lookup,
            archive=self.archive,
            gpu_layers=self.gpu_layers,
            tensor_split=self.tensor_split,
        )

    def as_dict(self) -> dict[str, object]:
        """Return the plan as plain values, for JSON."""
        devices = [asdict(share) | {"total": share.total} for share in self.devices]
        fields = asdict(self) | {"model": str(self.model), "planned_peak_bytes": self.peak_bytes}
        further = {"archive_tokens": self.archive_tokens, "device_bytes": self.device_bytes}
        return fields | {"parts": asdict(self.parts), "devices": devices} | further
