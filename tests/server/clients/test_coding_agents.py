"""Coding agents that people use, against a server: one task each, with a tool that they really run.

What the model replies is directed (directed.py), so that nothing is left to chance. They need npm or uv, and an index.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from children import LIMIT_S
from directed import directed
from packages import from_npm, from_pypi

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("server", ["here"], indirect=True)]

TASK = "Which number does answer.py print?"
PROGRAM = 'print("The answer is 417.")\n'
SAID = "It prints 417."


@pytest.fixture
def project(tmp_path):
    """A folder with a program, under version control."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "answer.py").write_text(PROGRAM)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


@pytest.fixture
def run(tmp_path, project):
    """A function that runs an agent in the project, with a home of its own, and returns what it says."""
    home = tmp_path / "home"
    home.mkdir()

    def agent(*command, **environment):
        known = os.environ | {"HOME": str(home), "PWD": str(project), "NO_COLOR": "1"}
        command = [*map(str, command)]
        asked = {"cwd": project, "stdin": subprocess.DEVNULL, "capture_output": True, "timeout": LIMIT_S, "text": True}
        done = subprocess.run(command, env=known | environment, check=False, **asked)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    agent.home = home
    return agent


def lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def assert_ran(relay):
    """The agent ran the tool, and told the model of the program."""
    assert set(relay.statuses) == {200}
    assert "The answer is 417." not in json.dumps(relay.bodies[0])
    assert "The answer is 417." in json.dumps(relay.bodies[-1])


# ---- Claude Code ----


@pytest.fixture(scope="module")
def claude(tmp_path_factory):
    with from_npm(tmp_path_factory.mktemp("claude"), "@anthropic-ai/claude-code") as folder:
        yield folder / "node_modules" / ".bin" / "claude"


def environment_of_claude(relay, server):
    return {
        "ANTHROPIC_BASE_URL": relay.url,
        "ANTHROPIC_AUTH_TOKEN": server.key,
        "ANTHROPIC_MODEL": server.model,
        "ANTHROPIC_SMALL_FAST_MODEL": server.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def test_claude_code_reads_a_file(server, claude, run, project):
    reading = {"tool": "Read", "arguments": {"file_path": str(project / "answer.py")}}
    with directed(server.url, text=SAID, **reading) as relay:
        told = run(
            *(claude, "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages", TASK),
            **environment_of_claude(relay, server),
        )
    assert_ran(relay)
    *events, result = lines(told)
    assert (result["is_error"], result["result"], result["num_turns"]) == (False, f'"{SAID}"', 2)
    assert sum(event["type"] == "stream_event" for event in events) > 10


def test_a_second_conversation_of_claude_code_begins_where_the_rules_and_tools_end(server, claude, run):
    with directed(server.url, text=SAID) as relay:
        for question in ("What is in this folder?", "Why is it slow, and what could be done?"):
            told = run(claude, "-p", "--output-format", "json", question, **environment_of_claude(relay, server))
    usage = json.loads(told)["usage"]
    cached, fresh = usage["cache_read_input_tokens"], usage["input_tokens"]
    assert cached + fresh > 8000
    assert cached >= 0.95 * (cached + fresh)


# ---- Codex ----


@pytest.fixture(scope="module")
def codex(tmp_path_factory):
    with from_npm(tmp_path_factory.mktemp("codex"), "@openai/codex") as folder:
        yield folder / "node_modules" / ".bin" / "codex"


CODEX = """
model = "{model}"
model_provider = "edgekv"

[model_providers.edgekv]
name = "edgekv"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "EDGEKV_KEY"
"""


def test_codex_runs_a_command(server, codex, run):
    (run.home / ".codex").mkdir()
    with directed(server.url, text=SAID, tool="exec_command", arguments={"cmd": "cat answer.py"}) as relay:
        (run.home / ".codex" / "config.toml").write_text(CODEX.format(url=relay.url, model=server.model))
        unasked = "--dangerously-bypass-approvals-and-sandbox"  # the command is known, and reads a file
        told = run(codex, "exec", "--json", unasked, TASK, EDGEKV_KEY=server.key)
    assert_ran(relay)
    items = [event["item"] for event in lines(told) if event["type"] == "item.completed"]
    assert [item["text"] for item in items if item["type"] == "agent_message"] == [f'"{SAID}"']


# ---- opencode ----


@pytest.fixture(scope="module")
def opencode(tmp_path_factory):
    with from_npm(tmp_path_factory.mktemp("opencode"), "opencode-ai") as folder:
        yield folder / "node_modules" / ".bin" / "opencode"


def test_opencode_reads_a_file(server, opencode, run, project):
    with directed(server.url, text=SAID, tool="read", arguments={"filePath": str(project / "answer.py")}) as relay:
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "edgekv",
            "options": {"baseURL": f"{relay.url}/v1", "apiKey": server.key},
            "models": {"local": {"name": "local", "limit": {"context": 32000, "output": 4096}}},
        }
        config = {"model": "edgekv/local", "provider": {"edgekv": provider}}
        (project / "opencode.json").write_text(json.dumps(config))
        told = run(opencode, "run", "--format", "json", TASK)
    assert_ran(relay)
    assert [event["part"]["text"] for event in lines(told) if event["type"] == "text"] == [SAID]


# ---- Continue ----


@pytest.fixture(scope="module")
def continue_cli(tmp_path_factory):
    with from_npm(tmp_path_factory.mktemp("continue"), "@continuedev/cli") as folder:
        yield folder / "node_modules" / ".bin" / "cn"


CONTINUE = """
name: local
version: 0.0.1
schema: v1
models:
  - name: edgekv
    provider: openai
    model: {model}
    apiBase: {url}/v1
    apiKey: {key}
"""


def test_continue_reads_a_file(server, continue_cli, run, project):
    config = run.home / "config.yaml"
    with directed(server.url, text=SAID, tool="Read", arguments={"filepath": str(project / "answer.py")}) as relay:
        config.write_text(CONTINUE.format(url=relay.url, model=server.model, key=server.key))
        told = run(continue_cli, "--config", config, "-p", TASK, CONTINUE_TELEMETRY_ENABLED="0")
    assert_ran(relay)
    assert SAID in told


# ---- aider ----


@pytest.fixture(scope="module")
def aider(tmp_path_factory):
    with from_pypi(tmp_path_factory.mktemp("aider"), "aider-chat") as programs:
        yield programs / "aider"


@pytest.mark.parametrize("streamed", ["--stream", "--no-stream"])
def test_aider_writes_a_file(server, aider, run, project, streamed):
    edited = PROGRAM.replace("417", "418")
    options = ("--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--no-gitignore", "--yes-always")
    with directed(server.url, text=f"answer.py\n```\n{edited}```\n") as relay:
        about = {"OPENAI_API_BASE": f"{relay.url}/v1", "OPENAI_API_KEY": server.key}
        task = ("--no-git", "--message", "Make it 418.", "answer.py")
        run(aider, "--model", f"openai/{server.model}", *options, streamed, *task, **about)
    assert set(relay.statuses) == {200}
    assert {bool(body.get("stream")) for body in relay.bodies} == {streamed == "--stream"}
    assert (project / "answer.py").read_text() == edited
