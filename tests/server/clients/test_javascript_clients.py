"""JavaScript packages of OpenAI, Anthropic, Ollama and Vercel against a server. They need node, npm and its index."""

from __future__ import annotations

import json
import subprocess

import pytest
from children import LIMIT_S
from packages import from_npm

pytestmark = [pytest.mark.nightly, pytest.mark.parametrize("server", ["here"], indirect=True)]

PACKAGES = ("openai", "@anthropic-ai/sdk", "ollama", "ai")
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


# MADE: an expression for the model; each provider speaks another of the APIs
AI_SDK = """
import { generateText, streamText, tool, jsonSchema } from "ai";
import { MAKER } from "PACKAGE";
const about = MADE;
const surely = { model: about, prompt: pets, temperature: 0, maxOutputTokens: 60, maxRetries: 0 };
const reply = await generateText(surely);
const stream = streamText(surely);
let pieces = "";
for await (const piece of stream.textStream) pieces += piece;
const inputSchema = jsonSchema({
  type: "object", properties: { city: { enum: ["Oslo"] } }, required: ["city"], additionalProperties: false,
});
const weather = tool({ description: "Tells the weather.", inputSchema, execute: ({ city }) => `It rains in ${city}.` });
const calling = { ...surely, tools: { weather }, toolChoice: "required" };
const called = await generateText(calling);
const streamed = streamText(calling);
await streamed.consumeStream();
for (const results of [called.toolResults, await streamed.toolResults])
  if (!results.length || results.some((it) => it.output !== "It rains in Oslo.")) throw new Error("no call");
const wrong = await generateText({ ...surely, model: WRONG }).catch((error) => error);
print([reply.text, pieces], wrong.statusCode, wrong.message);
"""
PROVIDERS = {
    "@ai-sdk/openai-compatible": (
        "createOpenAICompatible",
        'createOpenAICompatible({ name: "edgekv", baseURL: `${url}/v1`, apiKey: KEY })(model)',
    ),
    "@ai-sdk/openai": ("createOpenAI", "createOpenAI({ baseURL: `${url}/v1`, apiKey: KEY }).responses(model)"),
    "@ai-sdk/anthropic": ("createAnthropic", "createAnthropic({ baseURL: `${url}/v1`, apiKey: KEY })(model)"),
}


def ai_sdk(package):
    maker, made = PROVIDERS[package]
    program = AI_SDK.replace("MAKER", maker).replace("PACKAGE", package)
    return program.replace("MADE", made.replace("KEY", "key")).replace("WRONG", made.replace("KEY", '"another"'))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which the packages are installed."""
    with from_npm(tmp_path_factory.mktemp("javascript"), *PACKAGES, *PROVIDERS) as found:
        yield found


PROGRAMS = {"openai": OPENAI, "anthropic": ANTHROPIC, "ollama": OLLAMA} | {it: ai_sdk(it) for it in PROVIDERS}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_replies_streams_and_errors(server, folder, program):
    script = folder / "asks.js"
    script.write_text(BEGIN + program)  # imports come first, wherever they stand
    command = ["node", script, server.url, server.key, server.model, PETS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all("Mia" in text for text in found["texts"])
    assert found["status"] == 401
    assert "key" in found["message"]
