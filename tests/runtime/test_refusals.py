"""Models that cannot run are refused by the name of their architecture and with the reason, and nothing crashes."""

from __future__ import annotations

import subprocess

import pytest
from command import COMMAND

import edgekv

pytest.importorskip("gguf")
from unsupported_models import ARCHITECTURES, make_unsupported

from edgekv.models.architectures import find_architecture

REASONS = {
    "bloom": "ALiBi",
    "bert": "an encoder or non-causal attention",
}


def check(message, architecture):
    assert f"architecture '{architecture}' uses {REASONS[architecture]}" in message
    assert "not supported yet" in message
    assert "\n" not in message


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures_are_refused_by_name(tmp_path, architecture):
    path = make_unsupported(tmp_path / "model.gguf", architecture)
    # the command first: in a process of its own, an abort is a failed test and not the end of the run
    for command in (["plan"], ["ask", "What?"]):
        arguments = [*COMMAND, *command, "-m", str(path), "--memory", "1GiB"]
        result = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
        )
        assert result.returncode == 4, result.stderr
        assert result.stdout == ""
        assert result.stderr.startswith("edgekv: ")
        check(result.stderr.removesuffix("\n"), architecture)
    for refuse in (edgekv.plan, edgekv.Runtime):
        with pytest.raises(edgekv.UnsupportedModelError) as caught:
            refuse(path, memory="1GiB")
        check(str(caught.value), architecture)


def test_an_architecture_that_llama_cpp_does_not_know(tiny_model, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(n_layer=2).read_bytes().replace(b"llama", b"lorem"))
    with pytest.raises(edgekv.UnsupportedModelError, match=r"architecture 'lorem' of .* is not known"):
        edgekv.plan(path, memory="1GiB")


def test_the_table_has_what_is_refused_here():
    assert all(find_architecture(name).refused for name in ARCHITECTURES)
