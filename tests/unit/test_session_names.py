"""Names of saved sessions: in every script, and made of names of files."""

from __future__ import annotations

import pytest

from edgekv import SessionFileError
from edgekv.store.session_names import MAX_NAME_BYTES, default_name, path_of

HINDI, THAI = "\u0939\u093f\u0902\u0926\u0940", "\u0e20\u0e32\u0e29\u0e32\u0e17\u0e35\u0e48"


@pytest.mark.parametrize("name", [HINDI, THAI, "Caf\u00e9", "Zoe\u0308", "\u984c\u540d", "a.b_c-1"])
def test_a_name_may_be_of_any_script(name):
    assert path_of(name).name.endswith(".session")


def test_both_forms_of_a_letter_name_one_session():
    assert path_of("Cafe\u0301") == path_of("Caf\u00e9")


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a/b", "\u0301a", "con", "a\0", "a\u200b", "\u984c" * 34])
def test_other_names_are_refused(name):
    with pytest.raises(SessionFileError, match="cannot name a session"):
        path_of(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A report (final)", "A-report-final"),
        (f"{HINDI} 1", f"{HINDI}-1"),
        ("Zoe\u0308's notes", "Zo\u00eb-s-notes"),
        ("\u984c\u540d" * 25, ("\u984c\u540d" * 25)[:33]),
        (THAI * 20, (THAI * 20)[:33]),
        ("con", "document-con"),
        ("__..--\u0301x", "x"),
        ("...", "document"),
        ("a" * MAX_NAME_BYTES + "b", "a" * MAX_NAME_BYTES),
    ],
)
def test_a_default_name_is_one_that_a_session_can_have(text, name):
    assert default_name(text, "document") == name
    assert path_of(name)
