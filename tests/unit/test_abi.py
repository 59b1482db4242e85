"""The ctypes declarations say what the headers in native/include say."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgekv.binding import library, plan_structs, structs
from edgekv.binding.policy import READS
from edgekv.options import KV_TYPES
from edgekv.planning.plan import Parts
from edgekv.policies import POLICIES, AhaKV, Caote, FastCaote
from edgekv.policies.base import POOLS
from edgekv.policies.custom.scorer import Custom
from edgekv.policies.keydiff import ANCHORS, METRICS

INCLUDE = Path(__file__).resolve().parents[2] / "native" / "include"
HEADER = "".join(path.read_text() for path in sorted(INCLUDE.glob("edgekv*.h")))
STRUCTS = {
    struct.c_name(): struct
    for struct in (*structs.Struct.__subclasses__(), *structs.Input.__subclasses__())
    if struct is not structs.Input
}
# EDGEKV_DEFAULT declares a function for each
INITS = {f"{name}_init" for name in re.findall(r"^EDGEKV_DEFAULT\((\w+)\)", HEADER, re.MULTILINE)}

# what edgekv.h needs of llama.h: a few names, and no layout
LLAMA_H = """
#include <stdint.h>
typedef int32_t llama_token;
struct llama_model;
struct llama_context;
struct llama_model_params;
struct llama_context_params;
"""


# a scalar type of the header -> its type here
SCALARS = {
    "char": ctypes.c_char,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "size_t": ctypes.c_size_t,
    **{f"{sign}int{bits}_t": getattr(ctypes, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"enum {name}": ctypes.c_int for name in re.findall(r"^enum (edgekv_\w+) \{", HEADER, re.MULTILINE)},
    "llama_token": ctypes.c_int32,
    "edgekv_setting_spare": plan_structs.SettingSpare,
    "edgekv_scratch": plan_structs.Scratch,
}
DECLARATION = re.compile(r"(?P<type>.*?[\w*]) ?\b(?P<name>\w+)(?:\[(?P<n>\w+)\])?")
FUNCTION_POINTER = re.compile(r"(?P<result>\w+) \(\*(?P<name>\w+)\)\((?P<parameters>.*)\)")


def uncommented(text):
    return re.sub(r"//[^\n]*", "", text)


def declared(declaration):
    """Return name and type of a member or a parameter, as `kind_of` describes types."""
    words = " ".join(declaration.split())
    function = FUNCTION_POINTER.fullmatch(words)
    if function:
        parameters = [declared(parameter)[1] for parameter in function["parameters"].split(",")]
        return function["name"], ("function", kind_of_words(function["result"]), *parameters)
    match = DECLARATION.fullmatch(words)
    assert match, words
    kind = kind_of_words(match["type"])
    if match["n"] is None:
        return match["name"], kind
    constant = re.findall(rf"#define {match['n']} (\d+)", HEADER)
    return match["name"], ("array", kind, int(constant[0] if constant else match["n"]))


def kind_of_words(words):
    words = words.removeprefix("const ").strip()
    if words.endswith("*"):
        target = words.rstrip("* ").removeprefix("const ")
        return ("pointer", "int32_t" if target == "llama_token" else target)
    return words if words.startswith("struct ") else SCALARS[words]


def kind_of(type_):
    """Describe a ctypes type as `kind_of_words` describes C's; a pointer that does not say to what fits every one."""
    if type_ in (ctypes.c_void_p, ctypes.c_char_p):
        return ("pointer", None)
    if issubclass(type_, ctypes._Pointer):
        target = kind_of(type_._type_)
        return ("pointer", target if isinstance(target, str) else next(k for k, v in SCALARS.items() if v is target))
    if issubclass(type_, structs.Struct):
        return type_.__doc__
    if issubclass(type_, ctypes.Array):
        return ("array", kind_of(type_._type_), type_._length_)
    if issubclass(type_, ctypes._CFuncPtr) and type_ not in SCALARS.values():
        return ("function", kind_of(type_._restype_), *map(kind_of, type_._argtypes_))
    return type_


def agree(in_c, in_python):
    """Return if two types are one; a pointer to anything (c_void_p) stands for every pointer."""
    if isinstance(in_c, tuple) and isinstance(in_python, tuple):
        if in_c[0] == in_python[0] == "pointer":
            return in_python[1] in (None, in_c[1])
        return len(in_c) == len(in_python) and all(map(agree, in_c, in_python))
    return in_c == in_python


def members(header):
    """Return the members of every struct that a header defines: {struct: [(name, type), ...]}."""
    found = {}
    for name, body in re.findall(r"^struct (edgekv_\w+) \{\n(.*?)^\};", uncommented(header), re.MULTILINE | re.DOTALL):
        found[name] = [declared(line) for line in body.split(";") if line.strip()]
    return found


def differing(header):
    """Return the structs whose members are not the same, in name, type and order, in a header and in structs.py."""
    described = members(header)
    differ = set(described) ^ set(STRUCTS)
    for name in set(described) & set(STRUCTS):
        here = [(field, kind_of(type_)) for field, type_ in STRUCTS[name]._fields_]
        there = described[name]
        if len(here) != len(there) or not all(map(agree, there, here)):
            differ.add(name)
    return differ


def enum_values(name):
    """Constants of an enum of the header, spelt as in a policy spec -> value."""
    constants = re.findall(rf"EDGEKV_{name}_(\w+) += (\d+)", HEADER)
    return {constant.lower().replace("_", "-"): int(value) for constant, value in constants}


def test_versions_are_equal():
    (version,) = re.findall(r"#define EDGEKV_ABI_VERSION (\d+)", HEADER)
    assert library.load().edgekv_abi_version() == library.ABI_VERSION == int(version)


def test_every_function_is_declared():
    functions = set(re.findall(r"^EDGEKV_API .*?\b(edgekv_\w+) ?\(", HEADER, re.MULTILINE))
    assert functions | INITS == set(library._CALLS) | set(library._QUERIES)


def test_structs_that_are_given_have_defaults():
    assert {f"{struct.c_name()}_init" for struct in structs.Input.__subclasses__()} == INITS


def test_calls_take_the_arguments_that_the_header_declares():
    error = [("err", ("pointer", "char")), ("err_size", ctypes.c_size_t)]
    calls = {name: (ctypes.c_int, [*types, ctypes.c_char_p, ctypes.c_size_t]) for name, types in library._CALLS.items()}
    for name, (result, types) in (calls | library._QUERIES).items():
        if name in INITS:
            continue
        ((declared_result, text),) = re.findall(
            rf"^EDGEKV_API (.*?) ?\b{name} ?\(([^)]*)\);", uncommented(HEADER), re.MULTILINE
        )
        parameters = [] if text == "void" else [declared(parameter) for parameter in text.split(",")]
        assert len(parameters) == len(types), name
        assert all(map(agree, [kind for _, kind in parameters], map(kind_of, types))), (name, parameters)
        assert name not in calls or parameters[-2:] == error, name
        is_result = (
            result is None if declared_result == "void" else agree(kind_of_words(declared_result), kind_of(result))
        )
        assert is_result, name


def test_options_stand_where_the_enums_have_them():
    assert enum_values("ANCHOR") == {name: i for i, name in enumerate(ANCHORS)}
    assert enum_values("METRIC") == {name: i for i, name in enumerate(METRICS)}
    assert enum_values("POOL") == {name: i for i, name in enumerate(POOLS)}
    assert enum_values("SPREAD") == {"head": 0, "layer": 1}
    bases = {name: kind.native_base for name, kind in POLICIES.items()}
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
        "".join(f'#include "{path.name}"\n' for path in sorted(INCLUDE.glob("edgekv*.h")))
        + "#include <stdio.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\n}\n"
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


@pytest.mark.parametrize("name", sorted(path.name for path in INCLUDE.glob("*.h")))
def test_a_header_stands_alone(name, tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")
    if name != "edgekv_policy.h":  # this header needs no other
        (tmp_path / "llama.h").write_text(LLAMA_H)
    (tmp_path / "alone.c").write_text(f'#include "{name}"\nint main(void) {{ return EDGEKV_STATUS_OK; }}\n')
    command = [compiler, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{INCLUDE}"]
    subprocess.run([*command, f"-I{tmp_path}", tmp_path / "alone.c"], check=True, timeout=300)


def test_structs_have_the_members_of_the_header():
    assert differing(HEADER) == set()


def planted_changes():
    """Yield every struct with what its header would be if a member was added, removed, swapped, renamed or retyped."""
    for name, fields in members(HEADER).items():
        begin = re.search(rf"^struct {name} \{{\n", HEADER, re.MULTILINE).end()
        end = HEADER.index("\n};", begin) + 1
        lines = [line + ";\n" for line in uncommented(HEADER[begin:end]).split(";") if line.strip()]
        assert len(lines) == len(fields)
        first = lines[0]
        for changed in (
            [*lines, "    uint32_t added;\n"],  # the size stays the same where there was padding
            ["    uint32_t added;\n", *lines],
            lines[:-1],
            [*lines[1:], first],
            [re.sub(r"\b(\w+)((?:\[\w+\])?;|\)\()", r"\1_renamed\2", first, count=1), *lines[1:]],
            ["    int8_t " + fields[0][0] + ";\n", *lines[1:]],
            [*lines[:-1], "    float " + fields[-1][0] + ";\n"],
        ):
            if changed != lines:
                yield name, HEADER[:begin] + "".join(changed) + HEADER[end:]


def test_a_member_that_only_the_header_changes_is_found():
    missed = [(name, i) for i, (name, header) in enumerate(planted_changes()) if differing(header) != {name}]
    assert missed == []


def test_the_parts_of_a_plan_are_in_the_librarys_order():
    named = {"host": "python", "reserved": "grammars"}
    of_library = [name.removesuffix("_bytes") for name, _ in plan_structs.Parts._fields_]
    for name, ours in zip(of_library, Parts.__dataclass_fields__, strict=True):
        assert ours.startswith(named.get(name, name))
