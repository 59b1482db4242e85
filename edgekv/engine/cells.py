"""Whose the cells are: one conversation has them, and the others rest."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from .block_loop import BlockLoop
from .resting import Resting
from .snapshot import BlockLoopSnapshot
from .tenant import Tenant

Filled = TypeVar("Filled")


class Cells:
    """Gives the cells of a block loop to one tenant at a time. For one thread at a time, but for `leave`."""

    def __init__(self, block_loop: BlockLoop, resting: Resting) -> None:
        self.resting = resting
        self._controller = block_loop
        self._tenant: Tenant | None = None
        self._left: deque[Tenant] = deque()  # those who will not come back

    def take(self, tenant: Tenant) -> None:
        """Give a tenant the cells, as it left them. Whoever has them now rests first.

        Raises RestingError where there is no room for that, and DroppedError where what the tenant had is gone.
        """
        if self._tenant is tenant:  # even where it is closed just now: its reply ends by itself
            return
        self.sweep()
        started = time.perf_counter()
        if tenant.lost:
            raise tenant.dropped()
        self._rest(tenant)
        self._admit(tenant)
        tenant.work.switch_s += time.perf_counter() - started

    def has(self, tenant: Tenant) -> bool:
        """Whether a tenant has the cells."""
        return self._tenant is tenant

    def offer(self, tenant: Tenant) -> None:
        """Give a new tenant the cells if whoever has them has nothing in them."""
        self.sweep()
        if self._tenant is None or self._controller.cache.n_past == 0:
            self._rest(tenant)
            self._admit(tenant)

    def begin(self, tenant: Tenant, fill: Callable[[], Filled], instead_of: Tenant | None = None) -> Filled:
        """Give a new tenant the cells, which `fill` fills; returns what that returns. Whoever has them rests first.

        instead_of: who gives up what it has if `fill` succeeds; where it has the cells, `fill` finds them as they are

        Raises what `fill` raises, and RestingError where there is no room for whoever should rest. If other cells have
        then taken the place of those of `instead_of`, it has lost what it had.
        """
        self.sweep()
        if instead_of is None or self._tenant is not instead_of:
            self._rest(tenant)
            self._controller.clear()
            filled = fill()
        else:
            instead_of.settle()
            filled = self._replaced(self.note(instead_of), fill)
        self._controller.work = tenant.work
        self._tenant = tenant
        return filled

    def _replaced(self, present: Tenant, fill: Callable[[], Filled]) -> Filled:
        """Have the cells of who has them filled otherwise. It has lost them as soon as the first of them changes."""
        cache = self._controller.cache
        n_overwritten = cache.n_overwritten
        try:
            present.lost = "another session was loaded instead of this one"
            self._tenant = None
            filled = fill()
        except BaseException:
            if cache.n_overwritten == n_overwritten:
                self._tenant = present
                present.lost = ""
            else:
                present.n_past = present.n_cells = 0
            raise
        present.n_past = present.n_cells = 0
        return filled

    def leave(self, tenant: Tenant) -> None:
        """Have a tenant forgotten at the next use. From any thread, and in the midst of any call."""
        self._left.append(tenant)

    def sweep(self) -> None:
        """Forget those who left."""
        while self._left:
            tenant = self._left[0]  # until all of it is forgotten, whatever an interrupt breaks off
            self.resting.forget(tenant)
            tenant.lost = "this session is closed"
            if self._tenant is tenant:
                self.note(tenant)
                self._tenant = None
                self._controller.log = None
            if tenant.release is not None:
                tenant.release()
            self._left.popleft()

    def close(self) -> None:
        """Forget everybody, before the cells are freed."""
        if self._tenant is not None:
            self.note(self._tenant)
            self._tenant = None
        self.resting.close()

    def figures(self, tenant: Tenant) -> tuple[int, int]:
        """Tokens that a tenant has read and said, and cells that it uses per head. From any thread."""
        if self._tenant is tenant:
            cache = self._controller.cache
            found = cache.n_past, cache.n_cells
            if self._tenant is tenant:  # and nobody took them meanwhile
                return found
        return tenant.n_past, tenant.n_cells

    def note(self, tenant: Tenant) -> Tenant:
        """The tenant, with figures of now."""
        if self._tenant is tenant:
            cache = self._controller.cache
            tenant.work, tenant.n_past, tenant.n_cells = self._controller.work, cache.n_past, cache.n_cells
        return tenant

    def _rest(self, following: Tenant) -> None:
        """Copy the cells of whoever has them, so that `following` may. An interrupt leaves them where they are."""
        present = self._tenant
        if present is not None:
            present.settle()
            self.forget_copy(present)
            if self.note(present).n_past > 0:
                present.rests_filed = present.filed() is not None
                if not present.rests_filed:
                    self._keep(present, following)
        self._tenant = None

    def forget_copy(self, present: Tenant) -> None:
        """Free the copy of cells that a tenant has, which a switch left if it was interrupted."""
        present.rests_filed = False
        self.resting.forget(present)

    def _keep(self, present: Tenant, following: Tenant) -> None:
        """Copy the cells into memory, or on to the disk."""
        self.resting.make_room(self._controller.snapshot_bytes, keep=following)
        self.resting.put(present, self._controller.snapshot())

    def _admit(self, tenant: Tenant) -> None:
        """Give a tenant the cells, which are nobody's. Its copy is there until all of them are back."""
        snapshot = tenant.filed() if tenant.rests_filed else self.resting.get(tenant)
        if snapshot is None and tenant.n_past > 0:
            tenant.lost = "what this session had read and said was lost while others had the cells"
            raise tenant.dropped()
        self._controller.clear()
        self._controller.pinned = tenant.pinned
        if snapshot is not None:
            self._restore(tenant, snapshot)
        self._controller.work = tenant.work
        self._tenant = tenant
        self.forget_copy(tenant)

    def _restore(self, tenant: Tenant, snapshot: BlockLoopSnapshot) -> None:
        """Fill the cells again. Raises DroppedError where a file does not give the snapshot back."""
        try:
            self._controller.restore(snapshot)
        except OSError as error:
            self._controller.clear()
            tenant.lost = f"what this session had read and said cannot be read back: {error.strerror or error}"
            raise tenant.dropped() from error
