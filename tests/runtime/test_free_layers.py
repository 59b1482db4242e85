"""Models whose layers differ: some have no attention, or a matrix in its place, or no feed-forward part (deci)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from command import run_here, words
from diagonals import diagonal
from recorded import recorded_runtime
from reference_choice import Reference
from reference_transformer import ReferenceModel
from test_exactness import PREFILL, assert_exact, error

import edgekv
from edgekv.binding import library, structs
from edgekv.binding.cache import Cache
from edgekv.binding.model import Model
from edgekv.options import Options
from edgekv.planning.estimate import cache_params_of

N_PROMPT, N_STEPS = 320, 40
BUDGET, BLOCK = 64, 64
WRONG = 0.5  # layers without attention hide more of a wrong set in another one: 0.66 is the least that was measured

# (n_head, n_head_kv) of every layer, and n_ff
MODELS = {
    "between": (((4, 2), (4, 0), (4, 2), (0, 0), (4, 2)), ()),
    "first": (((4, 0), (4, 2), (0, 0), (4, 2)), ()),
    "last": (((4, 2), (4, 2), (0, 0)), ()),
    "uneven": (((4, 2), (8, 4), (0, 0), (6, 1), (4, 0)), (128, 256, 64, 96, 128)),
    "no feed-forward part": (((4, 2), (0, 0), (4, 2)), (128, 0, 128)),
}


@pytest.fixture
def free_model(tiny_model):
    """A function from a name of MODELS to the path of the model, and the KV heads of its layers with attention."""

    def make(name, n_ctx_train=1024):
        heads, widths = MODELS[name]
        path = tiny_model(
            architecture="deci",
            n_layer=len(heads),
            n_embd=128,
            head_dim=64,
            layer_heads=heads,
            layer_ff=widths,
            n_ctx_train=n_ctx_train,
        )
        return path, tuple(n for _, n in heads if n)

    return make


def tokens_of(n):
    return np.random.default_rng(3).integers(3, 250, n).tolist()


def draw_budgets(rng, cache, mean):
    """Budgets of that mean in every layer, the heads of each as unlike as they may be."""
    held = [[cache.head_cells(layer, g)[0] for g in range(len(row))] for layer, row in enumerate(cache.budgets())]
    budgets = [[min(n, mean) for n in row] for row in held]
    for row in budgets:
        moved = int(rng.integers(0, mean // 2)) if len(row) > 1 and min(row) == mean else 0
        row[0], row[-1] = row[0] - moved, row[-1] + moved
    return [[min(*pair) for pair in zip(*rows, strict=True)] for rows in zip(budgets, held, strict=True)]


@pytest.mark.parametrize(("name", "kv_type"), diagonal(MODELS, ["f16", "q8_0"]))
def test_logits_are_those_of_the_reference(free_model, name, kv_type):
    """Logits agree whatever was evicted."""
    path, heads = free_model(name)
    options = {"policy": "random(seed=7)", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    tokens = tokens_of(N_PROMPT + N_STEPS)
    with recorded_runtime(path, n_layer=len(heads), n_head_kv=heads, **options) as run:
        assert run.runtime.block_loop.cache.shape.n_layer == len(heads)
        prefill = run.read(tokens[:N_PROMPT])
        decoded = [run.step(token) for token in tokens[N_PROMPT:]]
        assert len(run.compactions) >= 4
    assert_exact(path, tokens, run, N_PROMPT, prefill, decoded, kv_type, WRONG)


@pytest.mark.each_by_day("name", "kv_type")
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["between", "first", "uneven"])
def test_heads_of_different_lengths_at_other_positions(free_model, name, kv_type):
    path, heads = free_model(name)
    tokens, rng = tokens_of(N_PROMPT + N_STEPS), np.random.default_rng(5)

    def draw(cache, policy, budget, keywords):
        keywords |= {"budgets": draw_budgets(rng, cache, budget), "reposition": True}

    # keydiff keeps scattered tokens, so the shifted set differs in most of them. snapkv keeps runs: a shift changes
    # four to six tokens, and its window of 32 protects more cells than some heads are given here.
    options = {"policy": "keydiff+ada", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    with recorded_runtime(path, n_layer=len(heads), n_head_kv=heads, before_compaction=draw, **options) as run:
        prefill = run.read(tokens[:N_PROMPT])
        decoded = [run.step(token) for token in tokens[N_PROMPT:]]
        assert len({len(kept) for layer in run.compactions[-1][1] for kept in layer}) > 1
        assert run.runtime.block_loop.cache.rope_past < len(tokens) - BLOCK
    assert_exact(path, tokens, run, N_PROMPT, prefill, decoded, kv_type, WRONG)


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpps_own_cache_gives_the_same_logits(free_model, name):
    """The reference's formulas for such layers are llama.cpp's."""
    path, _ = free_model(name)
    tokens = tokens_of(BLOCK)
    options = Options(memory="4GiB", budget=BLOCK, block=BLOCK, threads=1)
    with Model(path, options) as model:
        llama, found = library.bindings(), {}
        for layout in (None, structs.Layout(BLOCK, BLOCK)):
            context = edgekv.binding.model.Context(model, BLOCK, options, layout)
            array = (llama.llama_token * BLOCK)(*tokens)  # a batch does not keep it alive
            assert llama.llama_decode(context.handle, llama.llama_batch_get_one(array, BLOCK)) == 0
            logits = llama.llama_get_logits_ith(context.handle, -1)
            found[layout is None] = np.ctypeslib.as_array(logits, (model.n_vocab,)).copy()
            context.close()
    assert error(found[False], found[True]) < PREFILL
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    assert error(found[True], expected[-1]) < PREFILL


@pytest.mark.parametrize("spec", ["snapkv", "h2o+ada", "keydiff+ada", "tova+caote"])
def test_kept_positions_are_those_of_the_reference(free_model, spec):
    path, heads = free_model("between")
    reference = Reference(len(heads), heads[0])
    options = {"policy": spec, "budget": BUDGET, "block": 32, "recent": 10}
    with recorded_runtime(path, n_layer=len(heads), n_head_kv=2, before_compaction=reference, **options) as run:
        run.read(tokens_of(200))
        reference.check(run.compactions)


@pytest.mark.each_by_day("name", "policy")
@pytest.mark.parametrize("policy", ["snapkv+critical+ada", "h2o", "keydiff"])
@pytest.mark.parametrize("name", ["between", "first", "uneven"])
def test_a_session_goes_back_to_its_snapshot(free_model, monkeypatch, name, policy):
    monkeypatch.setattr(edgekv.binding.model.Model, "is_end", lambda model, token: False)
    path, heads = free_model(name, n_ctx_train=256)
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16}
    with edgekv.Runtime(path, policy=policy, archive="off", **options) as rt, rt.session() as session:
        session.read(" ".join(f"word{i % 97}" for i in range(150)), focus="What was it?")
        assert session.n_past > 256 >= rt.block_loop.cache.rope_past
        assert [len(layer) for layer in session.budgets()] == list(heads)
        for layer, n_head_kv in enumerate(heads):
            if policy != "keydiff":
                queries, _, _ = rt.block_loop.cache.queries(layer, probed=True)
                assert queries.shape[0] == [n for n, kv in MODELS[name][0] if kv][layer] >= n_head_kv
        taken = session.snapshot()
        first = "".join(session.chat("What was it?", max_tokens=40))
        session.restore(taken)
        assert "".join(session.chat("Who?", max_tokens=40)) != first
        session.restore(taken)
        assert "".join(session.chat("What was it?", max_tokens=40)) == first
        assert rt.block_loop.cache.bookkeeping_bytes == rt.plan.parts.bookkeeping


def test_inspect_and_plan(free_model, tmp_path):
    path, heads = free_model("uneven")
    book = tmp_path / "book.txt"
    book.write_text(words(100))
    common = ["-m", str(path), "--memory", "4GiB", "--budget", "64", "--block", "32", "--threads", "1"]
    for command in (["plan", *common], ["inspect", *common, "-f", str(book), "What?", "--policy", "snapkv+ada"]):
        result = run_here(*command)
        assert result.returncode == 0, result.stderr
    # a cell is a key and a value of 64 f16 each in every head with attention
    assert edgekv.plan(path, memory="1GiB", budget=64, block=32).cell_bytes == sum(heads) * 2 * 64 * 2


@pytest.mark.parametrize("given", [{"policy": "sink+pyramid"}, {"focus_policy": "snapkv+ada+pyramid"}])
@pytest.mark.parametrize("open_model", [edgekv.plan, edgekv.Runtime])
def test_pyramid_needs_layers_of_equally_many_heads(free_model, monkeypatch, open_model, given):
    """The model is refused before any weight is loaded, and by a cache that is opened without a plan."""
    path, heads = free_model("uneven")
    options = {"memory": "1GiB", "budget": 64, "block": 32, "threads": 1} | given
    message = rf"pyramid needs layers with equally many KV heads, but layer .* has {heads[0]} and .*; use ada, or"
    monkeypatch.setattr("edgekv.cells.loaded_model.Model", None)
    with pytest.raises(edgekv.UnsupportedModelError, match=message):
        open_model(path, **options)
    monkeypatch.undo()
    named = Options(**options)
    with Model(path, named) as model:
        context = model.new_context(200, named)
        with pytest.raises(edgekv.UnsupportedModelError, match=message):
            Cache(context, cache_params_of(named))
        context.close()


@pytest.mark.parametrize(
    ("architecture", "kinds"),
    list(itertools.product(["llama", "qwen2", "qwen3", "gemma"], [(0, 2), (2, 0)])),
)
def test_other_architectures_are_refused_by_name(tiny_model, tmp_path, architecture, kinds):
    """Graphs of other architectures attend in every layer, and crash if there is nothing to attend to."""
    gguf = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(tiny_model(architecture=architecture, n_layer=2))
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture",):
            continue
        if field.name == f"{architecture}.attention.head_count_kv":
            writer.add_head_count_kv(list(kinds))
        else:
            kind, *of = field.types
            writer.add_key_value(field.name, field.contents(), kind, sub_type=of[0] if of else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        edgekv.UnsupportedModelError, match=f"'{architecture}' uses no attention in layer {kinds.index(0)}"
    ):
        edgekv.plan(path, memory="1GiB")
