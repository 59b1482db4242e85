"""The archive of a text whose keys are turned: hot and recalled keys stand at adjacent RoPE positions, in order, and
each is one rounding from what was archived."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from archive_model import SAME, keys_if_fed, most_recalled
from diagonals import diagonal
from gguf.quants import dequantize
from gguf_files import gguf_reader
from recorded import recorded_runtime
from reference_quant import rotate
from reference_rope import frequencies_of, rope_at, turn_stored
from reference_transformer import ROPE_PAIRS, ReferenceModel
from test_archive import SEGMENT, SPAN, tokens_of
from test_context_rope import MODELS, ROPES
from test_exactness import DECODE, N_LAYER, SHAPES, error

import edgekv
from edgekv.binding.row_archive import RowArchive
from edgekv.errors import ArchiveError
from edgekv.policies import Head, parse_policy
from edgekv.policies.recall import least_recalled, recall_scores

BLOCK, BUDGET, N_RECALLED = 32, 48, 24
OPTIONS = {"memory": "4GiB", "budget": BUDGET, "block": BLOCK, "recent": 8, "threads": 1, "probe_tokens": 16}
OPTIONS |= {"reposition": "always", "focus_policy": "snapkv"}
CASES = [("llama", "plain"), ("llama", "llama3"), ("llama", "longrope"), ("qwen2", "yarn"), ("llama96", "linear")]


@pytest.fixture
def file():
    with tempfile.TemporaryFile(buffering=0) as file:
        yield file


class Program:
    """A cache that turns its keys at every eviction, its archive, and what every token's rows were when it was fed."""

    def __init__(self, runtime, file, policy="keydiff"):
        path = runtime.plan.model
        self.cache, self.policy = runtime.block_loop.cache, parse_policy(policy)
        self.kv_type, self.w = runtime.options.kv_type, frequencies_of(path)
        self.pairs = ROPE_PAIRS[gguf_reader(path).get_field("general.architecture").contents()]
        self.archive = RowArchive(self.cache, file.fileno(), 0, 1 << 30)
        self.fed = {}  # (layer, head, position) -> its key and value as they are stored, and its RoPE position

    def now(self):
        found = {}
        for at in self.cache.heads:
            keys, values = (stored(self.cache, *at, values=values) for values in (False, True))
            ropes = self.cache.positions(*at, rope=True).tolist()
            for position, *row in zip(self.cache.positions(*at).tolist(), keys, values, ropes, strict=True):
                found[(*at, position)] = tuple(row)
        return found

    def read(self, n_blocks, seed=0):
        for i in range(n_blocks):
            first = self.cache.n_past
            self.cache.feed(tokens_of(BLOCK, seed + i))
            self.fed |= {place: row for place, row in self.now().items() if place[-1] >= first}
            self.archive.append(self.cache)
            self.cache.compact(self.policy, BUDGET, n_sink=4, recent=8, reposition=True)

    def recall(self, seed=2):
        self.cache.probe(tokens_of(12, seed))
        return self.archive.recall(self.cache, N_RECALLED, **SPAN).n_cells

    def turned(self, place, to, of=None):
        """The key of a place, turned from where it was archived and rounded once. of: places -> rows in their stead"""
        key, _, at = (of or self.fed)[place]
        rotation = self.cache.row_format(place[0]).rotation
        return turn_stored(key[None], np.array([to - at]), self.w, self.pairs, self.kv_type, rotation)[0]

    def close(self):
        self.archive.close()


def stored(cache, layer, head, *, values=False):
    """Keys or values of a head as float64 (n, dim), rotated if they are stored so."""
    data, rows = cache.rows(layer, head, values=values)
    return dequantize(data.reshape(-1), rows.type).astype(np.float64).reshape(rows.n, rows.dim)


def within_a_rounding(found, expected, kv_type):
    """Check that keys are those expected, but for values between two steps of their type; returns the share that is
    equal to the bit."""
    largest = np.abs(expected).max()
    step = np.abs(expected) * 2**-10 + 5e-5 * largest if kv_type == "f16" else largest / 120  # angles are float32
    assert (np.abs(found - expected) <= step).all()
    return np.mean(found == expected)


def check(program, hot, given):
    """Every head has its hot tokens and others, at adjacent positions; keys are turned from what was archived.

    given: how many others each head has, on average
    """
    now, end = program.now(), program.cache.rope_past
    assert hot <= now.keys()
    assert len(now) - len(hot) == given * len(program.cache.heads)
    equal = []
    for at in program.cache.heads:
        positions = program.cache.positions(*at).tolist()
        ropes = program.cache.positions(*at, rope=True).tolist()
        assert positions == sorted(set(positions))
        assert ropes == list(range(end - len(positions), end))
    for place, (key, value, to) in now.items():
        equal.append(within_a_rounding(key, program.turned(place, to), program.kv_type))
        assert (value == program.fed[place][1]).all()
    assert np.mean(equal) > 0.99


@pytest.mark.parametrize(("model", "rope", "kv_type"), [(*case, it) for case, it in diagonal(CASES, ["f16", "q8_0"])])
def test_keys_are_turned_once_from_what_was_archived(tiny_model, file, model, rope, kv_type):
    path = tiny_model(**{"n_ctx_train": 1024} | MODELS[model] | ROPES[rope])
    with edgekv.Runtime(path, **OPTIONS, policy="keydiff", kv_type=kv_type) as rt:
        program = Program(rt, file)
        program.read(5)
        hot = program.now().keys()
        for seed in (2, 3):  # the second one takes the place of the first
            assert program.recall(seed) == N_RECALLED
            check(program, hot, N_RECALLED)
        program.cache.feed(tokens_of(3, seed=4))
        longest = max(len(program.cache.positions(*at)) for at in program.cache.heads)
        assert program.cache.positions(0, 0, rope=True)[-1] == program.cache.rope_past - 1 == longest - 1
        program.close()


def test_heads_of_different_lengths_end_at_one_position(open_runtime, file):
    with open_runtime(**OPTIONS, policy="keydiff+ada") as rt:
        program = Program(rt, file, "keydiff+ada")
        program.read(5)
        hot = program.now().keys()
        program.recall()
        check(program, hot, N_RECALLED)
        lengths = {len(program.cache.positions(*at)) for at in program.cache.heads}
        assert len(lengths) > 1
        assert program.cache.rope_past == max(lengths)
        program.close()


def test_a_head_that_gets_none_ends_there_too(open_runtime, file):
    """The next token comes at its own position, because one head holds the whole text. Other heads are turned."""
    with open_runtime(**OPTIONS, policy="keydiff+ada") as rt:
        program = Program(rt, file, "keydiff+ada")
        for first in (0, BLOCK):
            program.cache.feed(tokens_of(BLOCK, first))
        program.fed = program.now()
        program.archive.append(program.cache)
        budgets = [[2 * BLOCK, BLOCK], [60, 36]]
        program.cache.compact(program.policy, BUDGET, n_sink=4, recent=8, budgets=budgets, reposition=True)
        hot = program.now().keys()
        for seed in (2, 3):
            assert program.recall(seed) == 2 * BLOCK - BUDGET  # all that heads lack, on average
            assert program.cache.rope_past == program.cache.n_past
            check(program, hot, 2 * BLOCK - BUDGET)
            assert program.cache.positions(0, 0).tolist() == [*range(2 * BLOCK)]
        program.close()


def test_after_all_tokens_came_back_they_are_turned_again(open_runtime, file):
    """Then cells lie at their own positions, but some were archived at others."""
    with open_runtime(**OPTIONS, policy="keydiff") as rt:
        program = Program(rt, file)
        program.read(2)
        program.cache.feed(tokens_of(16))
        program.fed |= {place: row for place, row in program.now().items() if place[-1] >= 2 * BLOCK}
        program.archive.append(program.cache)
        program.cache.compact(program.policy, BUDGET, n_sink=4, recent=2, reposition=True)
        hot, n_lacking = program.now().keys(), program.cache.n_past - BUDGET
        assert {place[-1] for place in program.fed.keys() - hot if place[-1] >= 2 * BLOCK}
        for seed in (2, 3):
            program.cache.probe(tokens_of(12, seed))
            assert program.archive.recall(program.cache, 1000, **SPAN).n_cells == n_lacking
            assert program.cache.rope_past == program.cache.n_past
            check(program, hot, n_lacking)
        program.close()


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_all_keys_are_scored_at_one_position(open_runtime, file, kv_type):
    with open_runtime(**OPTIONS, policy="keydiff", kv_type=kv_type) as rt:
        program = Program(rt, file)
        program.read(8)
        cache, n, probe = program.cache, program.cache.n_past, tokens_of(12, seed=2)
        held = {at: cache.positions(*at) for at in cache.heads}
        own, n_free = keys_if_fed(cache, probe), cache.n_free
        cache.probe(probe)
        probed = [cache.queries(layer, probed=True) for layer in range(2)]
        assert program.archive.recall(cache, N_RECALLED, **SPAN).n_cells == N_RECALLED
        scores = {}
        for layer, g in cache.heads:
            queries, rows, scale = probed[layer]
            group = queries.reshape(2, -1, *queries.shape[1:])[g].astype(np.float64)
            rotation = cache.row_format(layer).rotation
            keys, _, ropes = map(np.array, zip(*(program.fed[layer, g, p] for p in range(n)), strict=True))
            keys, group = (rotate(each, rotation) if rotation else each for each in (keys, group))
            head = Head(
                keys=rope_at(keys, -ropes, program.w, program.pairs),
                values=np.empty((n, 0)),
                positions=np.arange(n),
                queries=group,
                query_positions=rows,
                scale=scale,
            )
            scores[layer, g] = recall_scores(head, own=own[layer, g], **SPAN)
        most = most_recalled(cache, {at: len(of) for at, of in held.items()}, N_RECALLED, n_free)
        least = least_recalled({at: np.delete(scores[at], of) for at, of in held.items()}, N_RECALLED, most)
        recalled = {at: np.setdiff1d(cache.positions(*at), of) for at, of in held.items()}
        assert sum(map(len, recalled.values())) == N_RECALLED * len(held)
        assert min(scores[at][of].min(initial=np.inf) for at, of in recalled.items()) >= least * (1 - SAME)
        program.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_a_transformer_that_turns_the_same_keys(tiny_model, file, shape):
    """The transformer sees what each head holds after every eviction and every recall."""
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, **SHAPES[shape])
    tokens, n_read = tokens_of(6 * BLOCK + 20), 6 * BLOCK
    options = {name: OPTIONS[name] for name in OPTIONS if name not in ("memory", "threads")} | {"policy": "keydiff"}

    def archive_first(cache, policy, budget, keywords):
        archive.append(cache)
        keywords["reposition"] = True

    shape = {"n_layer": N_LAYER, "n_head_kv": SHAPES[shape]["n_head_kv"]}
    with recorded_runtime(path, before_compaction=archive_first, **shape, **options) as run:
        cache, steps = run.runtime.block_loop.cache, []
        archive = RowArchive(cache, file.fileno(), 0, 1 << 30)
        for first in range(0, n_read, BLOCK):
            prefill = run.read(tokens[first : first + BLOCK])
        for i, token in enumerate(tokens[n_read:]):
            if i in (0, 8):  # before a few steps each, and no eviction between
                archive.append(cache)
                cache.probe(tokens_of(12, seed=i))
                assert archive.recall(cache, 8, **SPAN).n_cells == 8
                run.note()
            steps.append(run.step(token))
        assert [fed for fed, _ in run.compactions[-3:]] == [n_read, n_read + 8, n_read + 16]  # then it evicts
        archive.close()
    stored = {"positions": run.positions(len(tokens)), "moves": run.moves(len(tokens))}
    visible = run.visible(len(tokens))
    never = visible.copy()
    never[..., n_read:, :n_read] = visible[..., n_read - 1 : n_read, :n_read]  # what heads held before the first recall

    def errors(found=(prefill, *steps), **seen):
        expected = ReferenceModel.from_gguf(path).logits(tokens, **seen)[n_read - 1 :]
        return max(map(error, found, expected))

    by_sums = 0  # the bound of test_exactness.py
    if run.runtime.plan.device_bytes > 0:
        rounded = ReferenceModel.from_gguf(path).logits(
            tokens, visible=visible, **stored, kv_type="f16", rounded_from=n_read
        )
        by_sums = 2 * errors(rounded[n_read - 1 :], visible=visible, **stored)
    # the reference rounds a key at every turn, and a recall once in all
    assert errors(visible=visible, **stored) < 1.5 * DECODE + by_sums
    assert errors(visible=never, **stored) > 0.5
    assert errors(visible=visible) > 0.5  # keys that stayed


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_recall_ends_the_roundings_of_keys_that_were_turned_often(open_runtime, file, kv_type):
    with open_runtime(**OPTIONS, policy="keydiff", kv_type=kv_type) as rt:
        program = Program(rt, file)
        program.read(20)

        def errors(places):
            """Root mean squares: of keys as they are now, and of what one rounding leaves, against float64."""
            now, found = program.now(), []
            for place in places:
                key, _, to = now[place]
                rotation = program.cache.row_format(place[0]).rotation
                first, _, at = program.fed[place]
                plain = rotate(first[None], rotation) if rotation else first[None]
                exact = rope_at(plain, np.array([to - at]), program.w, program.pairs)
                exact = (rotate(exact, rotation) if rotation else exact)[0]
                found.append((key - exact, program.turned(place, to) - exact))
            return np.sqrt(np.square(found).mean(axis=(0, 2)))

        old = [place for place in program.now() if 4 <= place[-1] < program.cache.n_past - 4 * BLOCK]
        assert len(old) > 20
        often, once = errors(old)
        assert often > 1.8 * once
        program.recall()
        now, once = errors(old)
        assert now < 1.02 * once
        program.close()


def key_bytes(program, place):
    """Return where the key of a place lies in the file: (first byte, bytes)."""
    layer, g, position = place
    k, v = (program.cache.rows(layer, g, values=values)[1].stride_bytes for values in (False, True))
    head_bytes = SEGMENT * (8 + k + 4 + v)
    segment, skipped = divmod(position, SEGMENT)
    index = segment * len(program.cache.heads) + program.cache.heads.index((layer, g))
    return index * head_bytes + SEGMENT * 8 + skipped * k, k


def damage(program, file, places):
    for place in places:
        first, n = key_bytes(program, place)
        row = os.pread(file.fileno(), n, first)
        os.pwrite(file.fileno(), bytes(255 - byte for byte in row), first)


def bits(rows):
    return {place: (key.tobytes(), value.tobytes(), at) for place, (key, value, at) in rows.items()}


def scanned(program):
    """Begin a recall whose scan is done."""
    program.cache.probe(tokens_of(12, seed=2))
    program.archive.begin_recall(program.cache, N_RECALLED, **SPAN)
    assert program.archive.scan(len(program.cache.heads)) == 0


def test_if_a_row_cannot_be_read_no_key_is_turned(open_runtime, file):
    """Half of the rows that would come back are damaged after the scan, so others are read before one fails."""
    with open_runtime(**OPTIONS, policy="keydiff") as rt:
        program = Program(rt, file)
        program.read(6)
        before, rope_past = bits(program.now()), program.cache.rope_past
        scanned(program)
        damage(program, file, [place for place in program.fed.keys() - before.keys() if place[0] == 1])
        with pytest.raises(ArchiveError, match="has another checksum"):
            program.archive.finish_recall(program.cache)
        assert (bits(program.now()), program.cache.rope_past) == (before, rope_past)
        program.cache.feed(tokens_of(3), want_logits=True)
        assert np.isfinite(rt.context.logits_array()).all()
        program.close()


def test_a_hot_key_whose_row_cannot_be_read_is_turned_as_the_cell_has_it(open_runtime, file):
    with open_runtime(**OPTIONS, policy="keydiff") as rt:
        program = Program(rt, file)
        program.read(6)
        hot = program.now()
        scanned(program)
        damage(program, file, hot)
        assert program.archive.finish_recall(program.cache).n_cells == N_RECALLED
        for place, (key, value, to) in program.now().items():
            assert (value == program.fed[place][1]).all()
            within_a_rounding(key, program.turned(place, to, hot if place in hot else None), "f16")
        program.close()


def test_rows_that_nobody_wants_may_be_damaged(open_runtime, file):
    """Some of them are read, because they lie between others."""
    with open_runtime(**OPTIONS, policy="keydiff") as rt:
        program = Program(rt, file)
        program.read(6)
        snapshot = program.cache.snapshot()
        program.recall(seed=2)
        expected = bits(program.now())
        program.cache.restore(snapshot)
        scanned(program)
        damage(program, file, program.fed.keys() - expected.keys())
        assert program.archive.finish_recall(program.cache).n_cells == N_RECALLED
        assert bits(program.now()) == expected
        program.close()


def n_reads():
    """Return how often this thread has read anything so far."""
    lines = Path("/proc/thread-self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscr"])


@pytest.mark.skipif(not Path("/proc/thread-self/io").exists(), reason="only Linux counts what a thread reads")
def test_rows_of_a_segment_are_read_at_once(open_runtime, file):
    """Each head reads keys and values that come back, and the keys of its hot cells: two reads a row would be 768."""
    with open_runtime(**OPTIONS, policy="keydiff") as rt:
        program = Program(rt, file)
        program.read(12)
        hot = program.now().keys()
        scanned(program)
        n_before = n_reads()
        program.archive.finish_recall(program.cache)
        assert n_reads() - n_before < 150
        check(program, hot, N_RECALLED)
        program.close()


def test_a_damaged_rope_position_is_noticed(open_runtime, file):
    with open_runtime(**OPTIONS, policy="keydiff") as rt:
        program = Program(rt, file)
        program.read(6)
        before = bits(program.now())
        mark = 4  # the RoPE position of the first head's first key, behind its checksum
        os.pwrite(file.fileno(), b"\1", mark)
        with pytest.raises(ArchiveError, match="a row of position 0 has another checksum"):
            program.recall()
        assert bits(program.now()) == before
        program.close()


def test_a_snapshot_of_turned_keys_recalls_the_same_again(open_runtime, file):
    with open_runtime(**OPTIONS, policy="keydiff") as rt:
        program = Program(rt, file)
        program.read(6)
        snapshot = program.cache.snapshot()
        found = []
        for _ in range(2):
            program.recall()
            recalled = program.cache.snapshot()
            program.cache.feed(tokens_of(5, seed=5), want_logits=True)
            found.append((bits(program.now()), rt.context.logits_array().tobytes()))
            program.cache.restore(recalled)
            program.cache.feed(tokens_of(5, seed=5), want_logits=True)
            found.append((bits(program.now()), rt.context.logits_array().tobytes()))
            program.cache.restore(snapshot)
        assert all(each == found[0] for each in found)
        program.close()
