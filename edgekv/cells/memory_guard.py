"""The memory guard compares the memory of this process with its ceiling."""

from __future__ import annotations

from edgekv.errors import CeilingError, CeilingExceededError
from edgekv.memory import process
from edgekv.memory.sizes import MIB, format_size
from edgekv.planning.plan import Plan


class MemoryGuard:
    """Compares the memory of this process with the ceiling. Make it after planning, before the weights are loaded.

    A peak counts once. An earlier peak of the host, or one that was reported already, says nothing about now; the
    resident memory is then compared instead.

    n_exceeded: number of checks that found the process over its ceiling
    """

    def __init__(self, plan: Plan) -> None:
        self.n_exceeded = 0
        self._plan = plan
        self._known_peak = process.peak_resident_bytes()
        self._earlier_peak = 0  # when the ceiling moved last
        self._most_seen = 0  # by checks since then
        self._before_bytes = process.resident_bytes()

    def go_under(self, plan: Plan) -> None:
        """Compare with the ceiling of another plan from now on. Memory that was held before does not count."""
        self._plan = plan
        self._known_peak = self._earlier_peak = process.peak_resident_bytes()
        self._most_seen = process.resident_bytes()

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the process held since the ceiling moved last.

        The system counts no peak anew. Until there is a higher one, that is the most that was resident at a check.
        """
        peak = process.peak_resident_bytes()
        return peak if peak > self._earlier_peak else self._most_seen

    def check_room(self, n_bytes: int, what: str, remedy: str, reserved: int = 0) -> None:
        """Raise CeilingError if the resident memory and `n_bytes` more, which no plan counted, exceed the ceiling.

        reserved: bytes that are planned for swapped-out sessions, and not resident yet
        """
        ceiling, resident = self._plan.ceiling_bytes, process.resident_bytes()
        needed = resident + reserved + n_bytes
        if needed > ceiling:
            kept = f" and the {format_size(reserved)} for swapped-out sessions" if reserved else ""
            raise CeilingError(
                f"memory={format_size(ceiling)} does not hold {what}: {format_size(n_bytes)} beside the "
                f"{format_size(resident)} that are resident{kept} are {format_size(needed - ceiling)} too much; raise "
                f"the ceiling to {-(-needed // MIB)}MiB{', ' if remedy else ''}{remedy}",
                required_bytes=needed,
                ceiling_bytes=ceiling,
            )

    def check(self) -> CeilingExceededError | None:
        """Return the error to raise, or None while the ceiling holds. Reads the system's counters; takes no memory."""
        ceiling, peak, resident = self._plan.ceiling_bytes, process.peak_resident_bytes(), process.resident_bytes()
        self._most_seen = max(self._most_seen, resident)
        if peak <= ceiling:
            return None
        measured = peak if peak > self._known_peak else resident
        self._known_peak = max(peak, self._known_peak)
        if measured <= ceiling:
            return None
        self.n_exceeded += 1
        planned = self._plan.peak_bytes - self._plan.parts.python
        unplanned = max(0, measured - self._before_bytes - planned)
        return CeilingExceededError(
            f"the process held {format_size(measured)}, above memory={format_size(ceiling)}: "
            f"{format_size(self._before_bytes)} before the model was loaded, {format_size(planned)} planned since, and "
            f"{format_size(unplanned)} beyond that; where this program allocated those itself, raise the ceiling to "
            f"{-(-measured // MIB)}MiB, otherwise report it as a fault of edgekv, and until it is mended lower the "
            f"budget ({self._plan.budget_cells} cells)",
            planned_bytes=self._plan.peak_bytes,
            measured_bytes=measured,
            ceiling_bytes=ceiling,
        )
