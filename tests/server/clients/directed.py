"""A relay between a client and a server that says what the model replies: to call a tool first, then to say a text.

A model of 135M would call tools by chance. So the relay narrows each request: the one tool, its one value for each
argument, and the one text that fits. What the client sends, and how it understands the reply, stays the client's own.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
from children import LIMIT_S

OF_HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "date", "server"}
RESULTS = {'"tool_result"', '"role": "tool"', '"function_call_output"'}  # by API


@dataclass
class Directed:
    """Replies of the model as they are ordered, and the requests so far.

    tool, arguments: the tool that it calls in reply to a request without a tool's result; None = it calls none
    text: what it says otherwise
    bodies: what the client sent, in order
    statuses: of the answers
    """

    tool: str | None = None
    arguments: dict = field(default_factory=dict)
    text: str = "It prints 417."
    bodies: list = field(default_factory=list)
    statuses: list = field(default_factory=list)
    url: str = ""

    def narrowed(self, path, body):
        """Return the body of a request so that only the reply fits it that is wanted."""
        body = body | {"temperature": 0}
        calls = self.tool is not None and body.get("tools") and not any(it in json.dumps(body) for it in RESULTS)
        if calls:
            return body | {"tools": [self._narrowed(tool) for tool in body["tools"]], "tool_choice": self._choice(path)}
        return body | self._saying(path) | ({"tool_choice": _none(path)} if body.get("tools") else {})

    def _narrowed(self, tool):
        about = tool.get("function", tool)
        if about.get("name") != self.tool:
            return tool
        values = {name: {"enum": [value]} for name, value in self.arguments.items()}
        schema = {"type": "object", "properties": values, "required": [*values], "additionalProperties": False}
        about = about | {"input_schema" if "input_schema" in about else "parameters": schema}
        return tool | {"function": about} if "function" in tool else about

    def _choice(self, path):
        if "/messages" in path:
            return {"type": "tool", "name": self.tool}
        if "/responses" in path:
            return {"type": "function", "name": self.tool}
        return {"type": "function", "function": {"name": self.tool}}

    def _saying(self, path):
        schema = {"enum": [self.text]}
        if "/messages" in path:
            return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
        if "/responses" in path:
            return {"text": {"format": {"type": "json_schema", "name": "text", "schema": schema}}}
        return {"grammar": f"root ::= {json.dumps(self.text)}"}


def _none(path):
    return {"type": "none"} if "/messages" in path else "none"


@contextmanager
def directed(server_url, **replies):
    """A relay in front of a server, during the block; its address is `url`."""
    told = Directed(**replies)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            """Say nothing on stderr."""

        def do_GET(self):
            self._pass_on(b"")

        def do_HEAD(self):
            self._pass_on(b"")

        def do_POST(self):
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(content)
            told.bodies.append(body)
            self._pass_on(json.dumps(told.narrowed(self.path, body)).encode())

        def _pass_on(self, content):
            headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_HOP}
            asked = {"content": content, "headers": headers, "timeout": LIMIT_S}
            with httpx.stream(self.command, server_url + self.path, **asked) as answer:
                told.statuses.append(answer.status_code)
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name.lower() not in OF_HOP:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                for part in answer.iter_raw():
                    self.wfile.write(part)
            self.close_connection = True

    relay = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    relay.daemon_threads = True
    thread = threading.Thread(target=relay.serve_forever)
    thread.start()
    told.url = f"http://127.0.0.1:{relay.server_port}"
    try:
        yield told
    finally:
        relay.shutdown()
        relay.server_close()
        thread.join()
