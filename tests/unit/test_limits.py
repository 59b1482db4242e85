"""Ceilings in percent, and the limits of control groups, in trees made for the test."""

from __future__ import annotations

import pytest

from edgekv import CeilingError, ConfigError, Options
from edgekv.memory import process
from edgekv.memory.process import GroupLimit, group_limit
from edgekv.memory.sizes import check_ceiling, parse_ceiling

GIB = 1 << 30


@pytest.fixture
def tree(tmp_path):
    """A function from the text of /proc/self/cgroup and limits by their files' paths to the lowest limit."""

    def find(groups, **files):
        mount = tmp_path / "mount"
        mount.mkdir()
        for path, text in files.items():
            file = mount / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")
        (tmp_path / "groups").write_text(groups)
        found = group_limit(tmp_path / "groups", mount)
        return None if found is None else (found.n_bytes, found.file.relative_to(mount).as_posix())

    return find


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": GIB}, (GIB, "a/b/memory.max")),
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": GIB}, (GIB, "a/memory.max")),
        ("0::/a/b\n", {"a/b/memory.max": 2 * GIB, "a/memory.max": GIB}, (GIB, "a/memory.max")),
        ("0::/a/b\n", {"a/b/memory.max": GIB, "a/memory.max": 2 * GIB}, (GIB, "a/b/memory.max")),
        ("0::/a/b\n", {"a/c/memory.max": GIB}, None),  # a neighbour's limit
        ("0::/\n", {"memory.max": GIB}, (GIB, "memory.max")),
        ("0::/host/path\n", {"memory.max": GIB}, (GIB, "memory.max")),  # a container that sees its own group alone
        ("0::/a\n", {"a/memory.max": "max"}, None),
        ("0::/a\n", {}, None),
        (
            "4:cpu,memory:/a\n1:cpu:/x\n0::/\n",
            {"memory/a/memory.limit_in_bytes": GIB, "memory/x/memory.limit_in_bytes": 5},
            (GIB, "memory/a/memory.limit_in_bytes"),
        ),
        ("1:cpu:/\n0::/a\n", {"unified/a/memory.max": GIB}, (GIB, "unified/a/memory.max")),
    ],
)
def test_the_lowest_limit_of_a_group_and_its_parents(tree, groups, files, expected):
    assert tree(groups, **files) == expected


def test_no_control_groups_no_limit(tmp_path):
    assert group_limit(tmp_path / "absent") is None


def test_a_ceiling_above_the_groups_limit_is_refused(monkeypatch, tmp_path):
    file = tmp_path / "memory.max"
    monkeypatch.setattr(process, "group_limit", lambda: GroupLimit(GIB, file))
    check_ceiling(GIB)
    with pytest.raises(CeilingError) as error:
        check_ceiling(GIB + 1)
    assert (error.value.required_bytes, error.value.ceiling_bytes) == (GIB + 1, GIB)
    assert "memory=1024.0 MiB is above the 1024.0 MiB" in str(error.value)
    assert str(file) in str(error.value)
    assert "lower the ceiling to 1024MiB" in str(error.value)


def test_percent_are_of_the_machine_or_of_the_group(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "physical_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(process, "group_limit", lambda: None)
    assert parse_ceiling("25%") == Options(memory="25%").ceiling_bytes == 2 * GIB
    assert parse_ceiling(" 12.5 % ") == GIB
    assert parse_ceiling("100%") == 8 * GIB
    assert parse_ceiling("2GiB") == parse_ceiling(2 * GIB) == 2 * GIB
    for limit, share in ((4 * GIB, GIB), (1 << 62, 2 * GIB)):
        monkeypatch.setattr(process, "group_limit", lambda n=limit: GroupLimit(n, tmp_path))
        assert parse_ceiling("25%") == share


@pytest.mark.parametrize("memory", ["0%", "100.1%", "-5%", "%", "5%%"])
def test_percent_that_cannot_be(memory):
    with pytest.raises(ConfigError, match="%"):
        parse_ceiling(memory)


def test_this_machine_has_memory():
    assert process.physical_bytes() > 1 << 28
