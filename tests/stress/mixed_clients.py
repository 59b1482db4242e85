"""Clients of every kind at once: does the ceiling hold, and the plan, and is nobody told what another one asked?

    python tests/stress/mixed_clients.py [--clients 64] [--seconds 600] [--seed 0] [-- -m MODEL --memory SIZE ...]

Agents have 24 tools and go on in conversations, over all four APIs. Others ask for JSON by schemas of their own, for
replies to grammars, for schemas near each limit, about long texts, and for pages that are full of tools. Some leave in
mid-reply. Options after `--` go to `edgekv serve`.

A number that another client planted must not be in a reply. Predicted: none is; the peak is below the ceiling, and at
most 2 % off the plan. The program ends with 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx

from edgekv.testing.server_process import Serving, serving, status_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))
from hostile_schemas import HEAVY
from server_load import text_with

MIB = 1 << 20
WITHIN = 0.02  # part of the plan by which the peak may exceed it
N_TOOLS = 24
KEYS = ("path", "query", "limit", "offset", "pattern", "owner", "branch", "title", "body", "labels", "state", "depth")

Asked = tuple[str, dict[str, Any]]  # an address and a body


def schema_of(chance: random.Random, depth: int = 1) -> dict[str, Any]:
    """Return a JSON schema as programs write them, of some fields."""
    kinds: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": "string", "description": "what it is " * chance.randrange(1, 12)},
        lambda: {"type": "string", "enum": [f"{chance.choice(KEYS)}-{i}" for i in range(chance.randrange(2, 12))]},
        lambda: {"type": "string", "pattern": f"^[a-z]{{1,{chance.randrange(2, 40)}}}-[0-9]{{4}}$"},
        lambda: {"type": "string", "format": chance.choice(("date-time", "uuid", "email", "ipv4"))},
        lambda: {"type": "integer", "minimum": chance.randrange(100), "maximum": chance.randrange(100, 10**6)},
        lambda: {"type": "array", "items": {"type": "number"}, "maxItems": chance.randrange(1, 50)},
        lambda: {"anyOf": [{"type": "boolean"}, {"type": "null"}, {"type": "string", "maxLength": 200}]},
    ]
    if depth > 0:
        kinds += 2 * [lambda: schema_of(chance, depth - 1)]
    names = chance.sample(KEYS, chance.randrange(2, 7))
    fields = {name: chance.choice(kinds)() for name in names}
    required = chance.sample(names, chance.randrange(len(names)))
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def grammar_of(chance: random.Random) -> str:
    """Return a grammar in GBNF with lists, numbers and words."""
    words = " | ".join(f'"{chance.choice(KEYS)}{i}"' for i in range(chance.randrange(2, 60)))
    items = f'"[" item (", " item){{0,{chance.randrange(1, 20)}}} "]"'
    return f"root ::= {items}\nitem ::= word | [0-9]{{1,9}}\nword ::= {words}"


def tools_of(chance: random.Random, n: int = N_TOOLS, depth: int = 1) -> list[dict[str, Any]]:
    """Return functions as agents have them."""
    return [
        {
            "name": f"{chance.choice(KEYS)}_{i}",
            "description": "It does this and that. " * 8,
            "parameters": schema_of(chance, depth),
        }
        for i in range(n)
    ]


class Client:
    """A client with numbers of its own, which asks one thing after another. PLANTED: numbers of all clients"""

    PLANTED: ClassVar[set[str]] = set()

    def __init__(self, name: int, arguments: argparse.Namespace) -> None:
        self.chance = random.Random(f"{arguments.seed}-{name}")
        self.longest: int = arguments.longest
        self.numbers: set[str] = set()
        self.tools = tools_of(self.chance)
        self.turns: list[dict[str, Any]] = []

    def text(self, n_words: int) -> str:
        """Return a text with a number of this client."""
        number = self.chance.randrange(10**8, 10**9)
        self.numbers.add(str(number))
        self.PLANTED.add(str(number))
        return text_with(number, n_words, self.chance) + "\nWhat is the secret number? Answer with the number alone."

    def next(self) -> tuple[str, Asked]:
        """Return what is asked next, and the name of its kind."""
        kinds = [self.agent, self.schema, self.grammar, self.heavy, self.long, self.many_tools]
        kind = self.chance.choices(kinds, (8, 5, 3, 1, 1, 1))[0]
        return kind.__name__, kind()

    def agent(self) -> Asked:
        """Return the next turn of a conversation with tools, over any of the APIs."""
        if len(self.turns) > 6:
            self.turns.clear()
        if self.turns:
            self.turns.append({"role": "assistant", "content": "I have looked at it."})
        self.turns.append({"role": "user", "content": self.text(self.chance.randrange(20, 200))})
        system = "You are an agent that works with files. " * 20
        functions = [{"type": "function", "function": tool} for tool in self.tools]
        flat = [{"type": "function"} | tool for tool in self.tools]
        named = [
            {"name": it["name"], "description": it["description"], "input_schema": it["parameters"]}
            for it in self.tools
        ]
        chat = {"messages": [{"role": "system", "content": system}, *self.turns], "tools": functions}
        choice = self.chance.choice(("auto", "required"))
        return self.chance.choice(
            [
                ("/v1/chat/completions", chat | {"tool_choice": choice, "max_tokens": 48}),
                (
                    "/v1/responses",
                    {"instructions": system, "input": self.turns, "tools": flat, "max_output_tokens": 48},
                ),
                ("/v1/messages", {"system": system, "messages": self.turns, "tools": named, "max_tokens": 48}),
                ("/api/chat", chat | {"options": {"num_predict": 48}}),
            ]
        )

    def schema(self) -> Asked:
        """Return a question whose answer fits a schema."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema_of(self.chance)}}
        return self._chat(self.chance.randrange(20, 100), response_format=form, max_tokens=96)

    def grammar(self) -> Asked:
        """Return a question whose answer fits a grammar."""
        return self._chat(self.chance.randrange(20, 100), grammar=grammar_of(self.chance), max_tokens=64)

    def heavy(self) -> Asked:
        """Return a question with a schema that is near a limit, and that of a tool."""
        schema = self.chance.choice(list(HEAVY.values()))
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        tool = {
            "type": "function",
            "function": {"name": "heavy", "parameters": {"type": "object", "properties": {"a": schema}}},
        }
        more = self.chance.choice([{"response_format": form}, {"tools": [tool], "tool_choice": "required"}])
        return self._chat(20, max_tokens=96, **more)

    def long(self) -> Asked:
        """Return a question about a long text."""
        return self._chat(self.chance.randrange(self.longest // 4, self.longest), max_tokens=24)

    def many_tools(self) -> Asked:
        """Return a question with as many large tools as a body takes."""
        tools = tools_of(self.chance, self.chance.randrange(90, 128), depth=2)
        return self._chat(20, tools=[{"type": "function", "function": it} for it in tools], max_tokens=24)

    def _chat(self, n_words: int, **fields: Any) -> Asked:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": self.text(n_words)}], **fields}

    def is_mixed(self, told: str) -> bool:
        """Return True if a reply has the number of another client."""
        return any(number in told for number in self.PLANTED - self.numbers)


async def client(name: int, url: str, arguments: argparse.Namespace, ended: Counter[str]) -> None:
    """Ask until the time is over."""
    it = Client(name, arguments)
    async with httpx.AsyncClient(base_url=url, timeout=3600) as http:
        while time.perf_counter() < arguments.until:
            kind, (path, body) = it.next()
            body |= {"temperature": 0, "stream": it.chance.random() < 0.5}
            leaves = it.chance.random() < arguments.leaving
            try:
                async with asyncio.timeout(it.chance.uniform(0.05, 20) if leaves else 3600):
                    status, told = await asked(http, path, body)
            except TimeoutError:
                ended["left"] += 1
                continue
            ended[f"{kind} {status}"] += 1
            ended["MIXED UP"] += it.is_mixed(told)


async def asked(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """Send a request until it is admitted; return its status and the texts of its answer."""
    while True:
        answer = await http.post(path, json=body)
        if answer.status_code != 429:
            break
        await asyncio.sleep(float(answer.headers["retry-after"]) * random.uniform(0.5, 1.5))
    if answer.status_code != 200:
        return str(answer.status_code), ""
    lines = answer.text.splitlines() if body["stream"] else [answer.text]
    values = [line.removeprefix("data: ") for line in lines]
    return "200", "".join(text for it in values if it.startswith("{") for text in texts_in(json.loads(it)))


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts of a reply: what the model said, in the fields of any API."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("content", "text", "delta", "arguments", "partial_json") and isinstance(inner, str):
                yield inner
            elif isinstance(inner, (dict, list)):
                yield from texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_in(inner)


async def load(server: Serving, arguments: argparse.Namespace) -> Counter[str]:
    """Have all clients ask; print what the server holds meanwhile."""
    ended: Counter[str] = Counter()
    work = [asyncio.create_task(client(i, server.url, arguments, ended)) for i in range(arguments.clients)]
    while not all(task.done() for task in work):
        await asyncio.wait(work, timeout=20)
        resident = status_bytes(server.worker_pid() or server.process.pid, "VmRSS")
        print(
            f"  {sum(ended.values())} ended, {resident / MIB:.1f} MiB, peak {server.peak_bytes() / MIB:.1f} MiB",
            flush=True,
        )
    await asyncio.gather(*work)
    return ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=600, help="ask on for so long")
    parser.add_argument("--longest", type=int, default=8_000, help="words of the longest texts")
    parser.add_argument("--leaving", type=float, default=0.15, help="part of the requests whose client leaves")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    arguments.until = time.perf_counter() + arguments.seconds
    with serving(["--timeout", "36000", *arguments.options]) as server:
        props = httpx.get(f"{server.url}/props").json()
        plan, ceiling = props["planned_peak_bytes"], props["ceiling_bytes"]
        print(f"  begins with {server.peak_bytes() / MIB:.1f} of {plan / MIB:.1f} MiB planned, {props['budget']} cells")
        ended = asyncio.run(load(server, arguments))
        peak = server.peak_bytes()
    print(f"{dict(ended.most_common())}")
    print(f"peak {peak / MIB:.1f} MiB, planned {plan / MIB:.1f}, ceiling {ceiling / MIB:.1f}: {peak / plan - 1:+.2%}")
    holds = peak <= ceiling and peak <= plan * (1 + WITHIN)
    print("held" if holds else "OVER THE CEILING")
    sys.exit(not holds or ended["MIXED UP"] > 0)


if __name__ == "__main__":
    main()
