"""The pytest plug-in: the marker and the fixture `memory_ceiling`; docs/testing.md describes them.

The plug-in is part of every pytest run where edgekv is installed. So it imports the rest of edgekv on first use only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .ceiling import MemoryCeiling

MARKER = "memory_ceiling"
RECORDER = "edgekv-recorder"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}(size, timeout=600): run the test in a fresh process, and fail it where that process holds more "
        'memory than `size`, bytes or a size such as "512MiB", or takes longer than `timeout` seconds (edgekv)',
    )


@pytest.fixture(scope="session")
def memory_ceiling() -> type[MemoryCeiling]:
    """Run in a fresh process: `memory_ceiling("256MiB").run(function, *args)` or `.run_script(path, *arguments)`."""
    from .ceiling import MemoryCeiling

    return MemoryCeiling


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a marker that cannot work before any test runs."""
    for item in items:
        _ceiling_of(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    ceiling = _ceiling_of(item)
    # The fresh process runs the test as any other.
    if ceiling is None or item.config.pluginmanager.has_plugin(RECORDER):
        return None
    from .marked import run_marked

    run_marked(item, nextitem, ceiling)
    return True


def _ceiling_of(item: pytest.Item) -> MemoryCeiling | None:
    """Return the ceiling of the test's nearest marker, or None. Raises UsageError for a ceiling that cannot work."""
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return None
    from edgekv.errors import ConfigError

    from .ceiling import MemoryCeiling

    try:
        return MemoryCeiling(*marker.args, **marker.kwargs)
    except TypeError:
        given = [repr(value) for value in marker.args] + [f"{name}={value!r}" for name, value in marker.kwargs.items()]
        raise pytest.UsageError(
            f'{item.nodeid}: {MARKER}({", ".join(given)}) is not understood; write {MARKER}("512MiB"), or '
            f'{MARKER}("512MiB", timeout=60)'
        ) from None
    except ConfigError as error:
        raise pytest.UsageError(f"{item.nodeid}: {MARKER}: {error}") from None
