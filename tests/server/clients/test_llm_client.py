"""The `llm` command with a model that is registered to a server."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("llm")

pytestmark = pytest.mark.parametrize("server", ["here"], indirect=True)

PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"
DOG = "And what is my dog called?"


# one process for several commands: importing `llm` takes more than they do
COMMANDS = """
import json, sys
from click.testing import CliRunner
from llm.cli import cli
print(json.dumps([CliRunner().invoke(cli, one, catch_exceptions=False).output for one in json.loads(sys.argv[1])]))
"""


# test_openai_client.py asks for responses too; the command takes seconds to start
@pytest.fixture(scope="module", params=["chat", pytest.param("responses", marks=pytest.mark.nightly)])
def llm(server, request, tmp_path_factory):
    """A function that runs the command with each of some lists of arguments, and returns what it says."""
    folder = tmp_path_factory.mktemp("llm")
    registered = {
        "model_id": "here",
        "model_name": server.model,
        "api_base": f"{server.url}/v1",
        "api_key_name": "here",
        "responses": request.param == "responses",
    }
    (folder / "extra-openai-models.yaml").write_text(json.dumps([registered]))  # JSON is YAML
    (folder / "keys.json").write_text(json.dumps({"here": server.key}))
    # Only plug-ins that come with it are loaded: that of the default model's package needs more than the model.
    environment = os.environ | {"LLM_USER_PATH": str(folder), "LLM_LOAD_PLUGINS": ""}

    def run(*arguments):
        command = [sys.executable, "-c", COMMANDS, json.dumps(arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_chat(llm):
    models, cat, dog, logs = llm(
        ["models"],
        ["-m", "here", "-o", "temperature", "0", PETS],
        ["-c", "-o", "temperature", "0", DOG],  # options of an earlier turn do not stay
        ["logs", "-n", "1", "--json"],
    )
    assert "here" in models
    assert "Mia" in cat
    assert "Rex" in dog
    newest = json.loads(logs)[0]
    assert (newest["input_tokens"] > newest["output_tokens"] > 0, newest["prompt"]) == (True, DOG)


def test_without_a_stream(llm):
    (said,) = llm(["-m", "here", "--no-stream", "-s", "Be brief.", "-o", "temperature", "0", PETS])
    assert "Mia" in said
