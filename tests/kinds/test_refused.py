"""Families that do not run are refused by name, with the reason that the table of architectures gives."""

from __future__ import annotations

import subprocess

import pytest
from command import COMMAND
from evicting import REFUSED
from unsupported_models import ARCHITECTURES

import edgekv
from edgekv.models.architectures import find_architecture


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(family_model, name):
    path = family_model(name)
    for refuse in (edgekv.plan, edgekv.Runtime):
        with pytest.raises(edgekv.UnsupportedModelError) as caught:
            refuse(path, memory="1GiB")
        assert f"architecture {name!r} uses {find_architecture(name).refused}" in str(caught.value)


def test_the_command_says_so_with_a_status_of_its_own(family_model):
    arguments = [*COMMAND, "plan", "-m", str(family_model(REFUSED[0])), "--memory", "1GiB"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 4
    assert find_architecture(REFUSED[0]).refused in result.stderr


def test_the_table_has_what_other_tests_refuse():
    assert all(find_architecture(name).refused for name in ARCHITECTURES)
