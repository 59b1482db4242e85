"""JavaScript packages of OpenAI, Anthropic and Ollama against a server. They need node, npm and its index."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from children import LIMIT_S

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("server", ["here"], indirect=True)]

PACKAGES = ("openai", "@anthropic-ai/sdk", "ollama")
PETS = "My cat is called Mia and my dog is called Rex. What is my cat called?"

OPENAI = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const asked = { model, messages: [{ role: "user", content: pets }], temperature: 0, max_tokens: 40 };
const reply = await client.chat.completions.create(asked);
const stream = await client.chat.completions.create({ ...asked, stream: true });
let pieces = "";
for await (const chunk of stream) pieces += chunk.choices[0]?.delta.content ?? "";
const response = await client.responses.create({ model, input: pets, temperature: 0, max_output_tokens: 40 });
const wrong = new OpenAI({ baseURL: `${url}/v1`, apiKey: "another", maxRetries: 0 });
const error = await wrong.models.list().catch((error) => error);
print([reply.choices[0].message.content, pieces, response.output_text], error.status, error.message);
"""
ANTHROPIC = """
import Anthropic from "@anthropic-ai/sdk";
const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const asked = { model, messages: [{ role: "user", content: pets }], temperature: 0, max_tokens: 40 };
const reply = await client.messages.create(asked);
const stream = await client.messages.stream(asked).finalText();
const wrong = new Anthropic({ baseURL: url, apiKey: "another", maxRetries: 0 });
const error = await wrong.messages.create(asked).catch((error) => error);
print([reply.content[0].text, stream], error.status, error.message);
"""
OLLAMA = """
import { Ollama } from "ollama";
const client = new Ollama({ host: url, headers: { Authorization: `Bearer ${key}` } });
const asked = { model, messages: [{ role: "user", content: pets }], options: { temperature: 0, num_predict: 40 } };
const reply = await client.chat(asked);
let pieces = "";
for await (const part of await client.chat({ ...asked, stream: true })) pieces += part.message.content;
const wrong = new Ollama({ host: url, headers: { Authorization: "Bearer another" } });
const error = await wrong.list().catch((error) => error);
print([reply.message.content, pieces], error.status_code, error.message);
"""
BEGIN = """
const [url, key, model, pets] = process.argv.slice(2);
const print = (texts, status, message) => console.log(JSON.stringify({ texts, status, message }));
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the packages are installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is not installed")
    found = tmp_path_factory.mktemp("javascript")
    (found / "package.json").write_text('{"type": "module"}')
    installed = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", *PACKAGES], cwd=found, capture_output=True, timeout=LIMIT_S
    )
    if installed.returncode != 0:
        pytest.skip("npm has no index to install from")
    return found


@pytest.mark.parametrize("program", [OPENAI, ANTHROPIC, OLLAMA], ids=["openai", "anthropic", "ollama"])
def test_replies_streams_and_errors(server, folder, program):
    first, *rest = program.strip().splitlines(keepends=True)
    script = folder / "asks.js"
    script.write_text(first + BEGIN + "".join(rest))
    command = ["node", script, server.url, server.key, server.model, PETS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all("Mia" in text for text in found["texts"])
    assert found["status"] == 401
    assert "key" in found["message"]
