"""Peak memory of a process, and a table of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from edgekv.memory.process import peak_resident_bytes, resident_bytes
from edgekv.memory.sizes import format_size

# Audit event of a runtime that is opened; its argument is the runtime's plan.
RUNTIME_EVENT = "edgekv.runtime"


@dataclass(frozen=True, slots=True)
class Measured:
    """Resident bytes of one process, without its children.

    start    before its work
    peak     the most it ever held
    planned  parts of the largest edgekv runtime that was opened in it, by name; empty if there was none
    """

    start: int
    peak: int
    planned: Mapping[str, int] = field(default_factory=dict)

    def table(self, ceiling: int) -> str:
        """Return a table of the bytes, for people."""
        sections = {
            "planned by edgekv": {**self.planned, "planned peak": sum(self.planned.values())} if self.planned else {},
            "measured": {
                "resident at start": self.start,
                "grown since": self.peak - self.start,
                "peak": self.peak,
                "ceiling": ceiling,
                "over by": self.peak - ceiling,
            },
        }
        lines = [
            f"the process held {format_size(self.peak)}, {format_size(self.peak - ceiling)} more than its ceiling of "
            f"{format_size(ceiling)}",
            "",
        ]
        for title, rows in sections.items():
            if rows:
                lines.append(title)
                lines += [f"  {name:<18}{format_size(n_bytes):>13}" for name, n_bytes in rows.items()]
        return "\n".join(lines)


class MemoryMeter:
    """Measures the process it is made in. Audit hooks cannot be removed, so there should be one in a process."""

    def __init__(self) -> None:
        self._planned: Mapping[str, int] = {}
        sys.addaudithook(self._notice)
        self._start = resident_bytes()

    def read(self) -> Measured:
        """Return the bytes that the process has held so far."""
        return Measured(self._start, max(peak_resident_bytes(), self._start), self._planned)

    def _notice(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == RUNTIME_EVENT:
            (plan,) = arguments
            parts: dict[str, int] = plan.as_dict()["parts"]  # type: ignore[attr-defined]
            self._planned = max(self._planned, parts, key=lambda parts: sum(parts.values()))
