"""Pages of code are locked, so that a kernel short of memory leaves them alone."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from edgekv.memory.code_pages import lock_code

MAPS = """\
55d0c000-55d0d000 r--p 00000000 fe:00 11      /usr/bin/python
55d0d000-55d0f000 r-xp 00001000 fe:00 11      /usr/bin/python
55d0f000-55d10000 rw-p 00003000 fe:00 11      /usr/bin/python
7f000000-7f400000 rw-p 00000000 00:00 0
7f400000-7f800000 r--s 00000000 fe:00 12      /home/me/a model.gguf
7f800000-7f900000 r--p 00000000 fe:00 13      /usr/share/locale/names
7fa00000-7fa04000 r-xp 00000000 fe:00 14      /home/me/a folder/libllama.so
7fb00000-7fb01000 r-xp 00000000 00:00 0       [vdso]
"""


@pytest.fixture
def maps(tmp_path):
    file = tmp_path / "maps"
    file.write_text(MAPS)
    return file


def test_code_and_its_constants_are_locked_and_no_data(maps):
    locked = []
    assert lock_code(maps, lambda *pages: locked.append(pages) is None) == 0
    assert locked == [(0x55D0C000, 0x1000), (0x55D0D000, 0x2000), (0x7FA00000, 0x4000)]


def test_what_the_system_refuses_is_returned_and_the_rest_is_locked(maps):
    asked = []

    def lock(address, size):
        asked.append(address)
        return size != 0x2000

    assert lock_code(maps, lock) == 0x2000
    assert len(asked) == 3


def test_a_system_without_such_a_list_locks_nothing(tmp_path):
    assert lock_code(tmp_path / "maps", lambda *pages: pytest.fail("it locks")) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="Linux locks pages so")
def test_linux_locks_them(tmp_path):
    (tmp_path / "file").write_bytes(bytes(mmap.PAGESIZE))
    maps = tmp_path / "maps"
    with (
        open(tmp_path / "file", "rb") as file,
        mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC),
    ):
        maps.write_text("".join(_entries("/proc/self/maps", str(tmp_path))))
        if lock_code(maps):
            pytest.skip("this process may lock no page")
        flags = [line for line in _entries("/proc/self/smaps", str(tmp_path)) if line.startswith("VmFlags")]
        assert flags
        assert all("lo" in line.split() for line in flags)


def _entries(file, path):
    """Yield the lines on mappings of a path."""
    is_of_path = False
    for line in Path(file).read_text().splitlines(keepends=True):
        if not line.split()[0].endswith(":"):
            is_of_path = path in line
        if is_of_path:
            yield line
