"""The ctypes declarations say what the headers in native/include say."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgekv.binding import library, structs
from edgekv.binding.policy import READS
from edgekv.options import KV_TYPES
from edgekv.policies import POLICIES, AhaKV, Caote, FastCaote
from edgekv.policies.base import POOLS, SPREADS
from edgekv.policies.custom.scorer import Custom
from edgekv.policies.keydiff import ANCHORS, METRICS

INCLUDE = Path(__file__).resolve().parents[2] / "native" / "include"
HEADER = "".join((INCLUDE / name).read_text() for name in ("edgekv.h", "edgekv_devices.h"))
STRUCTS = {struct.__doc__.removeprefix("struct "): struct for struct in structs.Struct.__subclasses__()}

# what edgekv.h needs of llama.h: a few names, and no layout
LLAMA_H = """
#include <stdint.h>
typedef int32_t llama_token;
struct llama_model;
struct llama_context;
struct llama_model_params;
struct llama_context_params;
"""


def enum_values(name):
    """Constants of an enum of the header, spelt as in a policy spec -> value."""
    constants = re.findall(rf"EDGEKV_{name}_(\w+) += (\d+)", HEADER)
    return {constant.lower().replace("_", "-"): int(value) for constant, value in constants}


def test_versions_are_equal():
    (version,) = re.findall(r"#define EDGEKV_ABI_VERSION (\d+)", HEADER)
    assert library.load().edgekv_abi_version() == library.ABI_VERSION == int(version)


def test_every_function_is_declared():
    functions = set(re.findall(r"^EDGEKV_API .*?\b(edgekv_\w+) ?\(", HEADER, re.MULTILINE))
    assert functions == set(library._CALLS) | set(library._QUERIES)


def test_calls_take_as_many_arguments_as_the_header_says():
    for name, types in library._CALLS.items():
        (parameters,) = re.findall(rf"\b{name}\(([^)]*)\);", HEADER)
        assert len(types) + 2 == len(parameters.split(",")), name
        assert re.search(r"char \* err,\s+size_t +err_size$", parameters), name


def test_options_stand_where_the_enums_have_them():
    assert enum_values("ANCHOR") == {name: i for i, name in enumerate(ANCHORS)}
    assert enum_values("METRIC") == {name: i for i, name in enumerate(METRICS)}
    assert enum_values("POOL") == {name: i for i, name in enumerate(POOLS)}
    assert enum_values("SPREAD") == {name: i for i, name in enumerate(SPREADS)}
    assert enum_values("STAGING") == structs.STAGING
    bases = {name: kind.native_base for name, kind in POLICIES.items() if name != "replay"}  # snapkv's kernel
    assert enum_values("BASE") == bases | {"custom": Custom.native_base}
    assert enum_values("WEIGH") == {"none": 0, **{kind.name: kind.native_weigh for kind in (Caote, FastCaote)}}
    assert enum_values("READS") == READS
    ablations = ("floor", "recent_accumulation", "step_gain", "value_prior")
    flags = {
        name: AhaKV(**{other: other == name for other in ablations}).native_fields()["flags"] for name in ablations
    }
    assert enum_values("AHAKV") == {name.replace("_", "-"): flag for name, flag in flags.items()}


def test_kv_types_are_ggmls():
    gguf = pytest.importorskip("gguf")
    assert {name: gguf.GGMLQuantizationType[name.upper()].value for name in KV_TYPES} == KV_TYPES


def test_structs_are_laid_out_as_a_c_compiler_does(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, _ in struct._fields_:
            place = f"offsetof(struct {name}, {field}), sizeof(((struct {name} *) 0)->{field})"
            lines.append(f'printf("{name}.{field} %zu %zu\\n", {place});')
    (tmp_path / "llama.h").write_text(LLAMA_H)
    (tmp_path / "layout.c").write_text(
        '#include "edgekv_devices.h"\n#include <stdio.h>\nint main(void) {\n' + "\n".join(lines) + "\n}\n"
    )
    program = tmp_path / "layout"
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{tmp_path}", f"-I{INCLUDE}"]
    subprocess.run([*command, "-o", program, tmp_path / "layout.c"], check=True, timeout=300)
    found = subprocess.run([program], check=True, capture_output=True, text=True, timeout=300).stdout.splitlines()

    expected = []
    for name, struct in STRUCTS.items():
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        places = ((field, getattr(struct, field)) for field, _ in struct._fields_)
        expected += [f"{name}.{field} {place.offset} {place.size}" for field, place in places]
    assert found == expected


def test_every_struct_of_the_header_is_declared():
    assert set(re.findall(r"^struct (edgekv_\w+) \{", HEADER, re.MULTILINE)) == set(STRUCTS)
