"""The error tree, the list of public names, and the exception of every native status."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

import edgekv
from edgekv import errors
from edgekv.binding import library

HEADER = (Path(__file__).resolve().parents[2] / "native" / "include" / "edgekv_policy.h").read_text()
STATUSES = {name: int(value) for name, value in re.findall(r"EDGEKV_STATUS_(\w+) += (\d+)", HEADER)}


# ---- names ----


def test_public_names_exist_and_are_listed_once():
    assert len(set(edgekv.__all__)) == len(edgekv.__all__)
    assert all(hasattr(edgekv, name) for name in edgekv.__all__)


def test_every_error_is_public_and_listed_in_order():
    defined = [name for name, member in vars(errors).items() if inspect.isclass(member)]
    assert errors.__all__ == sorted(defined)
    assert set(errors.__all__) <= set(edgekv.__all__)


def test_every_error_derives_from_the_base():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.EdgeKVError)


def test_the_drawn_tree_is_the_tree():
    """The drawing at the top of errors.py: four columns a level."""
    drawn = re.findall(r"^( *(?:\| +)?[|`]?-?-? ?)(\w+Error)\b", errors.__doc__, re.MULTILINE)
    above: dict[int, type] = {}
    for indent, name in drawn:
        error = getattr(errors, name)
        level = len(indent) // 4 - 1
        above[level] = error
        assert level == 0 or above[level - 1] in error.__bases__, name
    assert sorted(name for _, name in drawn) == errors.__all__


def test_ceiling_error_carries_the_figures_that_clash():
    error = errors.CeilingError("too much", required_bytes=3, ceiling_bytes=2)
    assert (str(error), error.required_bytes, error.ceiling_bytes) == ("too much", 3, 2)


def test_errors_survive_pickling():
    """A worker process hands them to its host."""
    for error in (
        errors.InputError("not text"),
        errors.CeilingError("too much", required_bytes=3, ceiling_bytes=2),
        errors.CeilingExceededError("over", planned_bytes=1, measured_bytes=3, ceiling_bytes=2),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.args, vars(again)) == (type(error), error.args, vars(error))


# ---- statuses ----


def test_every_status_has_an_exception():
    assert STATUSES["OK"] == 0
    assert set(library.STATUS_ERRORS) == set(STATUSES.values()) - {0}
    assert sorted(STATUSES.values()) == list(range(len(STATUSES)))


@pytest.mark.parametrize("name", sorted(set(STATUSES) - {"OK"}))
def test_status_becomes_its_exception(name):
    error = library.error_of(STATUSES[name], "the reason")
    assert type(error) is library.STATUS_ERRORS[STATUSES[name]]
    assert "the reason" in str(error)
    if type(error) is errors.NativeError:  # no class of its own: the message says which status it was
        assert str(error) == f"{name.lower().replace('_', ' ')}: the reason"


def test_a_status_from_the_future_is_a_native_error():
    assert type(library.error_of(99, "news")) is errors.NativeError
    assert str(library.error_of(99, "news")) == "unknown: news"


def test_library_names_its_statuses():
    names = {library.load().edgekv_status_name(value).decode() for value in STATUSES.values()}
    assert names == {name.lower().replace("_", " ") for name in STATUSES}


def test_a_failed_call_raises_with_the_librarys_message():
    with pytest.raises(errors.ConfigError, match="ctx or shape is NULL"):
        library.call("edgekv_context_shape", None, None)
