"""The state of a session's sampler in a file: as it was, and impossible."""

from __future__ import annotations

import json

import pytest

from edgekv.conversations.session_codec import dialogue_of, header_values
from edgekv.errors import SessionFileError
from edgekv.generation.sampler import SamplerState, Sampling
from edgekv.generation.turn_state import Dialogue
from edgekv.store.snapshot_header import SnapshotHeader

SAMPLING = Sampling(temperature=0.5, seed=3, frequency_penalty=0.25, logit_bias={7: -100, 3: 1.5})


def read(change=lambda sampling: None):
    dialogue = Dialogue("assistant", (5,), SamplerState(SAMPLING, 3, 9, (1, 2)))
    values = json.loads(json.dumps(header_values(None, dialogue)))
    change(values["sampler"]["sampling"])
    return dialogue_of(SnapshotHeader(SessionFileError, values)).sampler


def test_a_sampler_comes_back():
    assert read() == SamplerState(SAMPLING, 3, 9, (1, 2))


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": -1},
        {"logit_bias": [[1]]},
        {"logit_bias": [["a", 1]]},
        {"logit_bias": 5},
        {"unheard_of": 1},
    ],
)
def test_impossible_samplings_are_refused(change):
    with pytest.raises(SessionFileError, match="'sampling' is impossible"):
        read(lambda sampling: sampling.update(change))


def test_a_field_that_every_file_has_is_missed():
    with pytest.raises(SessionFileError, match="'sampling' is impossible"):
        read(lambda sampling: sampling.pop("temperature"))
