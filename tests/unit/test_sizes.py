"""Sizes as people write them."""

from __future__ import annotations

import pytest

from edgekv import ConfigError
from edgekv.memory.sizes import MIB, format_size, parse_size


@pytest.mark.parametrize(
    ("written", "n_bytes"),
    [
        (268435456, 256 << 20),
        ("268435456", 256 << 20),
        ("1048576", 1 << 20),
        ("256M", 256 << 20),
        ("2G", 2 << 30),
        ("1.5 ki", 1536),
        ("256MiB", 256 << 20),
        ("256 mib", 256 << 20),
        ("  256\tMiB ", 256 << 20),
        ("1.5GB", 1_500_000_000),
        ("0.5KiB", 512),
        ("3B", 3),
        ("1KB", 1000),
        ("1TiB", 1 << 40),
        (1, 1),
    ],
)
def test_sizes_that_are_understood(written, n_bytes):
    assert parse_size(written) == n_bytes
    assert isinstance(parse_size(written), int)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "MiB",
        "256 mebibytes",
        "1e9",
        "1,5GB",
        "256MiB!",
        "-256MiB",
        "+1",
        "0x10",
        "1 000",
        ".5GB",
        "5.GB",
        "9" * 400,
    ],
)
def test_sizes_that_are_not_understood(written):
    with pytest.raises(ConfigError) as error:
        parse_size(written)
    assert str(error.value) == f"size {written!r} is not understood; write bytes, or a number with MiB, GiB, MB or GB"


@pytest.mark.parametrize(
    ("written", "meant"), [("256", "256MiB"), ("1.5", "1.5MiB"), (" 1024 ", "1024MiB"), ("262144", "262144KiB")]
)
def test_a_small_number_without_a_unit(written, meant):
    with pytest.raises(ConfigError) as error:
        parse_size(written)
    assert str(error.value) == f"size {written.strip()} means bytes, which is too little; write {meant}"


@pytest.mark.parametrize(("written", "size"), [(0, 0), (-1, -1), ("0", 0), ("0.4B", 0), ("0MiB", 0)])
def test_sizes_below_one_byte(written, size):
    with pytest.raises(ConfigError, match=f"size {size} is not a positive whole number; write bytes"):
        parse_size(written)


def test_format_size():
    assert format_size(256 << 20) == "256.0 MiB"
    assert format_size((1 << 20) + (1 << 19)) == "1.5 MiB"
    assert format_size(0) == "0.0 MiB"


@pytest.mark.parametrize("size", [1.5, float("nan"), True, None])
def test_sizes_that_are_not_whole_numbers(size):
    with pytest.raises(ConfigError, match="not a positive whole number"):
        parse_size(size)


@pytest.mark.parametrize(
    ("n_bytes", "shown"),
    [(0, "0.0 MiB"), (256, "256 bytes"), (10064, "9.8 KiB"), (MIB // 10, "0.1 MiB"), (3 * MIB // 2, "1.5 MiB")],
)
def test_small_sizes_are_shown_as_bytes(n_bytes, shown):
    assert format_size(n_bytes) == shown
