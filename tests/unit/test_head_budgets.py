"""Cells divided over heads by given shares: native and reference, limits, tables and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from policy_arrays import BACKENDS

from edgekv import BudgetError, ConfigError, InvalidModelError, Options, PolicyError
from edgekv.binding import library
from edgekv.binding.structs import HEAD_LIMIT
from edgekv.models.catalog import known_models
from edgekv.models.head_shares import HeadShares, find_shares, has_shares, path_beside, path_in_cache, read_shares
from edgekv.models.sampled_digest import N_SAMPLES, SAMPLE_BYTES, sampled_digest
from edgekv.planning.choice import MOST_DIVIDED, default_policy, may_lack_table
from edgekv.policies import Head, parse_policy
from edgekv.policies.heads import divide, native_shares
from edgekv.policies.selection import Protection

NO_LIMIT = 2**32 - 1


def divided(shares, held, least, budget, backend, largest=None):
    if backend == "reference":
        return divide(shares, held, least, budget, largest)
    shares, held = np.asarray(shares, dtype=np.float32), np.asarray(held, dtype=np.uint32)
    found = np.empty(len(held), dtype=np.uint32)
    limit = NO_LIMIT if largest is None else largest
    arguments = (shares.ctypes.data, held.ctypes.data, len(held), least, budget, limit, found.ctypes.data)
    library.call("edgekv_divide", *arguments)
    return found.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shares", "held", "least", "largest", "expected"),
    [
        ([1, 1, 1, 1], [50, 50, 50, 50], 0, None, [10, 10, 10, 10]),
        ([1, 2, 3, 4], [50, 50, 50, 50], 0, None, [4, 8, 12, 16]),
        ([0, 0, 0, 1], [50, 50, 50, 50], 2, None, [2, 2, 2, 34]),
        ([1, 1, 1, 97], [50, 50, 50, 50], 3, 20, [7, 7, 6, 20]),  # what one may not have the others get
        ([1, 2, 3, 4], [9, 9, 9, 9], 0, None, [9, 9, 9, 9]),  # nothing has to go
        ([9, 9, 1, 1], [2, 50, 50, 50], 4, None, [2, 30, 4, 4]),
        ([0, 0, 0, 0], [50, 50, 50, 50], 4, None, [10, 10, 10, 10]),
    ],
)
def test_cells_go_by_shares_within_limits(shares, held, least, largest, expected, backend):
    assert divided(shares, held, least, 10, backend, largest) == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([1e-35, 2e-35, 3e-35, 0], [6, 12, 18, 4]),
        ([1, 2, 3, 1e-35], [6, 12, 18, 4]),  # the last one would need far more a share than the others
        ([1e30, 2e30, 3e30, 1e-37], [6, 12, 18, 4]),
        ([1e-45, 1e-45, 1e-45, 1e38], [9, 9, 9, 13]),
    ],
)
def test_shares_divide_cells_whatever_their_magnitude(shares, expected, backend):
    assert divided(shares, [50, 50, 50, 13 if shares[3] == 1e38 else 50], 4, 10, backend) == expected


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_shares_that_no_float_holds_reach_the_library_in_their_proportion(scale):
    found = native_shares([0, scale, 3 * scale]).astype(np.float64)
    np.testing.assert_allclose(found / found[2], [0, 1 / 3, 1], rtol=1e-6)


def test_both_divide_alike_and_keep_every_limit():
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(1, 120))
        shares = (rng.gamma(0.3, size=n) * 1000).astype(np.float32) * (rng.random(n) > 0.1)
        held = rng.integers(0, 2000, n)
        budget = int(rng.integers(1, 800))
        least, largest = int(rng.integers(0, budget + 1)), int(rng.integers(budget, 4 * budget))
        expected = divided(shares.tolist(), held.tolist(), least, budget, "reference", largest)
        assert divided(shares, held, least, budget, "native", largest) == expected
        caps = np.minimum(held, largest)
        assert (np.minimum(least, caps) <= expected).all()
        assert (expected <= caps).all()
        assert sum(expected) == min(n * budget, caps.sum())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"shares": [1, -1]}, ConfigError, "share of a head is no number from 0 on"),
        ({"shares": [1, np.nan]}, ConfigError, "share of a head is no number from 0 on"),
        ({"shares": [1, np.inf]}, ConfigError, "share of a head is no number from 0 on"),
        ({"least": 11}, BudgetError, "11 protected cells exceed the budget of 10"),
        ({"largest": 9}, ConfigError, "largest=9 is less than the budget of 10"),
    ],
)
def test_what_cannot_be_divided_is_refused(wrong, error, message, backend):
    given = {"shares": [1, 2], "held": [50, 50], "least": 0, "budget": 10, "largest": 30} | wrong
    with pytest.raises(error, match=message):
        divided(**given, backend=backend)


def test_the_policy_keeps_the_safeguard_and_what_is_protected():
    heads = [Head(keys=np.ones((60, 8)), positions=np.arange(60), budget=20, share=share) for share in (0.0, 1.0, 1.0)]
    assert parse_policy("keydiff+heads").head_budgets(heads, Protection()) == [6, 27, 27]
    assert parse_policy("keydiff+heads(safeguard=0)").head_budgets(heads, Protection()) == [0, 30, 30]
    assert parse_policy("keydiff+heads").head_budgets(heads, Protection(n_sink=4, recent=6)) == [10, 25, 25]
    other = Head(keys=np.ones((3, 8)), positions=np.arange(3), budget=2)
    with pytest.raises(ConfigError, match=r"have the budgets \[2, 20\]; give one"):
        parse_policy("keydiff+heads").head_budgets([*heads, other], Protection())


@pytest.mark.parametrize(
    "spec", ["keydiff(rope=off)+heads", "snapkv+critical+heads(safeguard=0.5)", "random+caote+heads"]
)
def test_what_it_wraps_scores_and_chooses(spec):
    policy, rng = parse_policy(spec), np.random.default_rng(3)
    assert policy.spec == spec
    assert policy.spread == "given"
    inner = policy.inner
    rows = {"queries": rng.normal(size=(2, 4, 8)), "query_positions": np.arange(26, 30)}
    head = Head(
        keys=rng.normal(size=(30, 8)),
        positions=np.arange(30),
        values=rng.normal(size=(30, 8)),
        wo_norm=rng.random(30),
        budget=12,
        **rows,
    )
    np.testing.assert_array_equal(policy.score(head), inner.score(head))
    np.testing.assert_array_equal(policy.keep(head, Protection()), inner.keep(head, Protection()))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("keydiff+ada+heads", "heads goes over a base or caote, critical, fastcaote, not over ada"),
        ("keydiff+heads+pyramid", "pyramid goes over .*, not over heads"),
        ("keydiff+heads+ada", "ada goes over .*, not over heads"),
        ("keydiff+heads+critical", "critical goes over .*, not over heads"),
        ("keydiff+heads(safeguard=2)", r"heads\(safeguard=2\)"),
    ],
)
def test_what_divides_cells_otherwise_is_refused(spec, message):
    with pytest.raises(PolicyError, match=message):
        parse_policy(spec)


def test_texts_are_read_without_the_general_question():
    """A question that is known still scores, with cells that are divided alike."""
    even = "snapkv(window=64, kernel=61, aggregate=max)"
    for budget in (128, 256, 257, 1024, 4096):
        options = Options(memory="1GiB", policy="keydiff+heads", budget=budget)
        assert options.reads_alone
        assert options.parsed_focus.spec == even + "+heads"
        merged = Options(memory="1GiB", policy="keydiff+heads+merge(cells=8)", budget=budget)
        assert merged.parsed_focus.spec == even + "+heads+merge"
        assert options.turned_focus.spec == merged.turned_focus.spec == even
        assert Options(memory="1GiB", policy="keydiff", budget=budget).parsed_focus.spec == even
    for given in ({"focus_policy": "snapkv+heads"}, {"policy": "snapkv+heads"}):
        named = Options(memory="1GiB", budget=128, **{"policy": "keydiff+heads"} | given)
        assert named.turned_focus == named.parsed_focus
    assert Options(memory="1GiB", policy="keydiff(rope=off)").reads_alone
    assert not Options(memory="1GiB", policy="keydiff").reads_alone


TABLE = HeadShares(((3.0, 1.0), (2.0, 2.5)), 2, "replay", 1, 100)


def test_a_table_beside_the_model_is_found(tmp_path):
    model = tmp_path / "model.gguf"
    path_beside(model).write_text(TABLE.to_json())
    model.touch()
    assert find_shares(model, [2, 2]) == TABLE
    with pytest.raises(ConfigError, match=r"4 KV heads in 2 layers, but model.gguf has 3 in 1; .*edgekv heads --model"):
        find_shares(model, [3])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def cached(tmp_path, cache):
    """A model, and its table in the cache."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    path = path_in_cache(model)
    path.parent.mkdir(parents=True)
    path.write_text(replace(TABLE, model=path.stem).to_json())
    return model, path


def test_a_table_in_the_cache_is_found_by_what_the_model_holds(cached, tmp_path):
    model, path = cached
    assert find_shares(model, [2, 2]).cells == TABLE.cells
    (tmp_path / "elsewhere").mkdir()
    moved = model.rename(tmp_path / "elsewhere" / "other name.gguf")
    assert has_shares(moved)
    assert not may_lack_table(moved, None, MOST_DIVIDED)
    assert not has_shares(model)  # nothing is there now
    moved.write_bytes(b"weightz")
    assert path_in_cache(moved) != path
    assert not has_shares(moved)
    assert may_lack_table(moved, None, MOST_DIVIDED)


def test_a_table_beside_the_model_comes_first(cached):
    model, _ = cached
    path_beside(model).write_text(replace(TABLE, cells=((9.0,),)).to_json())
    assert find_shares(model, [1]).cells == ((9.0,),)
    path_beside(model).write_text("{}")
    assert has_shares(model)
    with pytest.raises(ConfigError, match="is no table of head shares"):
        find_shares(model, [2, 2])


@pytest.mark.parametrize("content", ["{}", "", TABLE.to_json(), replace(TABLE, model="another").to_json()])
def test_a_damaged_or_foreign_table_in_the_cache_is_as_good_as_none(cached, content):
    model, path = cached
    path.write_text(content)
    assert not has_shares(model)
    assert default_policy(model, MOST_DIVIDED) == "keydiff(rope=off)"
    with pytest.raises(ConfigError, match="is not there; make it with: edgekv heads"):
        find_shares(model, [2, 2])


def test_a_table_in_the_cache_comes_before_a_known_one(default_model, cache):
    path = path_in_cache(default_model)
    path.parent.mkdir(parents=True)
    path.write_text(replace(TABLE, model=path.stem).to_json())
    assert find_shares(default_model, [2, 2]).cells == TABLE.cells


@pytest.mark.parametrize(
    ("policy", "budget", "may_lack"),
    [
        (None, MOST_DIVIDED, True),
        (None, 1, True),
        (None, MOST_DIVIDED + 1, False),
        (None, None, False),
        ("keydiff", 64, False),
    ],
)
def test_a_table_is_lacking_where_an_open_policy_has_few_named_cells(tmp_path, cache, policy, budget, may_lack):
    model = tmp_path / "model.gguf"
    model.touch()
    assert may_lack_table(model, policy, budget) == may_lack
    assert not may_lack_table(tmp_path / "none.gguf", policy, budget)
    path_beside(model).write_text(TABLE.to_json())
    assert not may_lack_table(model, policy, budget)


def test_known_models_lack_no_table(default_model, cache):
    assert not may_lack_table(default_model, None, 64)


def test_a_digest_is_of_the_size_and_of_samples(tmp_path):
    """A file of few bytes is digested whole. Its first and its last bytes always count."""
    path = tmp_path / "model.gguf"
    n_bytes = N_SAMPLES * SAMPLE_BYTES
    found = []
    for size, changed in ((n_bytes, None), (n_bytes, n_bytes // 2 + 1), (3 * n_bytes, None), (3 * n_bytes, 0)):
        data = bytearray(size)
        if changed is not None:
            data[changed] = 1
        path = tmp_path / f"{len(found)}.gguf"
        path.write_bytes(data)
        found.append(sampled_digest(path))
    data = bytearray(3 * n_bytes)
    data[-1] = 1
    path.write_bytes(data)
    os.utime(path, ns=(0, 0))  # the digest of a file that has not changed is remembered
    found.append(sampled_digest(path))
    assert len(set(found)) == len(found)
    with pytest.raises(InvalidModelError, match="cannot be read"):
        sampled_digest(tmp_path / "none.gguf")


def test_a_model_without_a_table_is_told_how_to_make_one(tmp_path):
    model = tmp_path / "model.gguf"
    model.touch()
    with pytest.raises(ConfigError, match=r"model.gguf.heads.json' is not there; make it with: edgekv heads --model"):
        find_shares(model, [2, 2])


def test_the_default_policy_goes_by_the_model_the_table_and_the_named_cells(default_model, tmp_path):
    model = tmp_path / "model.gguf"
    for path, even in ((model, "keydiff(rope=off)"), (default_model, "keydiff"), (Path("hf:a/b"), "keydiff(rope=off)")):
        assert [default_policy(path, budget) for budget in (None, MOST_DIVIDED + 1)] == [even] * 2
    assert default_policy(Path("hf:a/b"), MOST_DIVIDED) == "keydiff(rope=off)"
    assert default_policy(default_model, MOST_DIVIDED) == "keydiff(rope=off)+heads+merge"
    model.touch()
    assert default_policy(model, MOST_DIVIDED) == "keydiff(rope=off)"
    path_beside(model).write_text(TABLE.to_json())
    assert default_policy(model, MOST_DIVIDED) == "keydiff(rope=off)+heads+merge"
    assert default_policy(model, MOST_DIVIDED, merges=False) == "keydiff(rope=off)+heads"


def test_the_default_model_has_one_wherever_it_lies(default_model, tmp_path):
    known = known_models()[0]
    shares = find_shares(default_model, [3] * 30)
    assert max(max(layer) for layer in shares.cells) <= HEAD_LIMIT * shares.budget
    assert np.mean(shares.cells) == pytest.approx(shares.budget, rel=0.01)
    link = tmp_path / "link.gguf"
    link.symlink_to(default_model)
    assert find_shares(link, [3] * 30) == shares
    copy = tmp_path / known.file_name
    shutil.copy(default_model, copy)
    assert find_shares(copy, [3] * 30) == shares


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"version": 2},
        {"cells": 3},
        {"cells": None},
        {"more": 1},
    ],
)
def test_broken_tables_are_named(tmp_path, change):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(json.loads(TABLE.to_json()) | change))
    with pytest.raises(ConfigError, match=r"table.json' is no table of head shares; remove it"):
        read_shares(path)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"cells": [[1, -1]]}, "says -1 for cells of head 1 of layer 0"),
        ({"cells": [[1], [True]]}, "says True for cells of head 0 of layer 1"),
        ({"cells": [[1, "2"]]}, "says '2' for cells of head 1 of layer 0"),
        ({"cells": [[1e300]]}, r"says 1e\+300 for cells of head 0 of layer 0"),
        ({"cells": [[int("9" * 400)]]}, f"says {'9' * 40}[.]{{3}} for cells of head 0"),
        ({"cells": [[1, float("nan")]]}, "says nan for cells of head 1 of layer 0"),
        ({"cells": [[float("inf")]]}, "says inf for cells of head 0 of layer 0"),
        ({"cells": [[[[1]]]]}, "says a list for cells of head 0 of layer 0"),
        ({"cells": ["a"]}, "says 'a' for cells of head 0 of layer 0"),
        ({"budget": -1}, "says -1 for budget, where a whole number"),
        ({"budget": 1.5}, "says 1.5 for budget, where a whole number"),
        ({"n_tokens": None}, "says a NoneType for n_tokens, where a whole number"),
    ],
)
def test_numbers_that_no_head_could_keep_are_named(tmp_path, change, shown):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(json.loads(TABLE.to_json()) | change))
    with pytest.raises(ConfigError, match=rf"table.json' {shown}.* in \[0, 1073741824\] is possible; remove it, or "):
        read_shares(path)


def test_no_table_is_longer_than_a_model_could_need(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(TABLE.to_json() + " " * (5 << 20))
    with pytest.raises(ConfigError, match="has more than the 4 MiB that a table may have; remove it"):
        read_shares(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"cells": []}', "[" * 100_000, '{"cells": [[NaN]]}'])
def test_files_that_hold_no_table_are_named(tmp_path, text):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no table of head shares"):
        read_shares(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_shares(tmp_path)
