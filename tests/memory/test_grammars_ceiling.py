"""The plan counts the bytes of grammars, whoever wrote them."""

from __future__ import annotations

import pytest
from held_replies import replies
from hostile_schemas import HEAVY, HOSTILE

MIB = 1 << 20
PLAIN = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"]}
OPTIONS = {"memory": "256MiB", "budget": 256, "threads": 1, "prompt_lookup": "off", "grammars": True}

# each near a limit, by which it is refused or given up
LARGE = [
    {"type": "object", "properties": {f"key{i}": {"type": "string"} for i in range(n)}, "required": required}
    for n, required in ((200, []), (400, [f"key{i}" for i in range(400)]), (900, []))
]
IN_A_ROW = {"const": "".join(chr(97 + i * 7 % 26) for i in range(8_300))}
PLANNED = [schema for name, schema in HEAVY.items() if name != "combined"]
REGEXES = [{"type": "string", "pattern": pattern} for pattern in (r"(\w{1,999}\W{1,999}){1,999}", "(.*[ab].{9}){3}")]
LARGEST = [
    HEAVY["many states"],
    HEAVY["wide"],
    LARGE[-1],
    IN_A_ROW,
    *REGEXES,
]  # their replies take the most memory, and end soon


@pytest.mark.parametrize(
    ("schemas", "refused"),
    [
        pytest.param([PLAIN], 0, marks=pytest.mark.nightly),  # the first grammar of a full runtime is, too
        pytest.param(LARGEST, None, marks=pytest.mark.nightly),
        pytest.param([*PLANNED, *LARGE, *REGEXES], None, marks=pytest.mark.nightly),
        (list(HOSTILE.values())[:14], 14),
    ],
    ids=["plain", "largest", "heavy", "hostile"],
)
def test_a_grammar_stays_within_the_plan(memory_ceiling, default_model, schemas, refused):
    ended = memory_ceiling("256MiB").run(replies, default_model, schemas, **OPTIONS)
    n_refused, planned, for_grammars = ended.value
    assert refused in (None, n_refused)
    assert ended.peak_bytes <= planned <= 256 * MIB
    assert refused or planned - ended.peak_bytes < for_grammars  # some of it was needed, but for what is refused


@pytest.mark.nightly
def test_combining_stays_below_the_ceiling(memory_ceiling, default_model):
    roomy, tight = (
        memory_ceiling(ceiling).run(replies, default_model, [HEAVY["combined"]], **OPTIONS | {"memory": ceiling})
        for ceiling in ("256MiB", "213MiB")
    )
    assert roomy.value[0] == 1  # it is too large in the end
    assert tight.value[0] == 1
    assert roomy.peak_bytes > tight.peak_bytes + 8 * MIB


def test_the_first_grammar_takes_the_memory_of_cells(memory_ceiling, default_model):
    """Of a runtime whose cells fill its ceiling, and which was not told of grammars."""
    ended = memory_ceiling("168MiB").run(replies, default_model, [PLAIN], memory="168MiB", threads=1)
    n_refused, planned, for_grammars = ended.value
    assert (n_refused, for_grammars > 20 * MIB) == (0, True)
    assert ended.peak_bytes <= planned <= 168 * MIB


def test_nobody_pays_for_grammars_who_does_not_ask(default_model):
    import edgekv

    options = OPTIONS | {"memory": "4GiB"}  # what this process holds counts, too
    plain, held = (edgekv.plan(default_model, **options | {"grammars": grammars}) for grammars in (False, True))
    assert plain.parts.grammars == 0
    assert 20 * MIB < held.parts.grammars < 30 * MIB
    assert held.budget_cells == plain.budget_cells
