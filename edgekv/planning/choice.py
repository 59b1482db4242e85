"""A request: options of a user, and the names of options that are left to the planner."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from edgekv.arguments import check_names
from edgekv.options import DEFAULT_POLICY, MEANT, Options

from .default_memory import is_bundled, most_default_bytes

# The planner chooses these if they are None or not named, as it does a budget of None.
OPEN = ("memory", "policy", "block", "kv_type", "repack", "resident", "gpu_layers", "tensor_split")


@dataclass(frozen=True, slots=True)
class Request:
    """Options of a user, and the names of options that the planner may choose."""

    options: Options
    open: frozenset[str]

    @classmethod
    def of(cls, **given: object) -> Request:
        """Make a request of arguments of `Runtime`. None = the argument's default.

        Raises ConfigError for unknown ones, and for values that cannot work.
        """
        check_names(given, [it.name for it in fields(Options) if it.init], "Runtime", MEANT)
        left_open = frozenset(name for name in OPEN if given.get(name) is None)
        named = {name: value for name, value in given.items() if value is not None}
        return cls(Options(**named), left_open)  # type: ignore[arg-type]

    def of_model(self, path: Path) -> Request:
        """Return the request with the default policy, and the model's largest default ceiling, if these are open.

        A ceiling of a user's own model stays open: it is lowered to what the chosen plan needs.
        """
        chosen: dict[str, Any] = {}
        left_open = self.open
        if "policy" in left_open:
            chosen["policy"] = DEFAULT_POLICY
        if "memory" in left_open:
            if is_bundled(path):
                left_open -= {"memory"}
            else:
                chosen["memory"] = most_default_bytes()
        return Request(replace(self.options, **chosen), left_open)

    @property
    def repacks(self) -> bool:
        """Return True if the planner tries repacked weights first, because `repack` is open."""
        return "repack" in self.open and not self.options.mmap
