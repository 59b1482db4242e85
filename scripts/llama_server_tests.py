"""Run the tests of llama.cpp's server against `edgekv serve`, and against llama-server with the same model.

TESTS is the folder tools/server/tests of llama.cpp's source; nothing of it is part of this project. Its tests name
models of Hugging Face and start llama-server by a path. Here a program takes llama-server's place: it starts either
server with one model, and leaves out options that edgekv has not. A test that expects the words or the token counts
of another model fails with both servers, and says nothing. A test that llama-server alone passes is a difference:
those are listed with their messages.

    uv run --no-sync --with wget --with filelock --with prometheus-client --with aiohttp --with pytest-timeout \\
        python scripts/llama_server_tests.py TESTS --peer llama-server
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import Any

LEFT_OUT = {
    "compat_gcp": "the form of Vertex AI",
    "ctx_shift": "shifts of the context; edgekv evicts",
    "embedding": "embeddings",
    "kv_keep_only_active": "slots that are saved by their number",
    "lora": "adapters",
    "mcp_servers": "a server that calls tools by itself",
    "proxy": "a proxy for its page",
    "rerank": "ranking",
    "router": "several models",
    "sleep": "a model that is unloaded when idle",
    "slot_save": "slots that are saved by their number",
    "speculative": "a second model for drafts",
    "stream": "replies that a client joins again",
    "tools_builtin": "tools of the server's own",
    "vision_api": "images",
}
TRANSLATED = {"--port": "--port", "--api-key": "--api-key", "--alias": "--name", "--parallel": "--parallel"}
TRANSLATED |= {"--chat-template-file": "--chat-template"}
OF_MODELS = ("--hf-repo", "--hf-file", "--model-url", "--mmproj-url", "--model", "--model-draft")
MEMORY = "512MiB"
LONGEST = 64  # tokens of a reply that names no length: the tests give llama-server this default
LENGTHS = ("n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens")
COLUMNS = {  # outcomes of llama-server's and edgekv's
    "both pass": ("passed", "passed"),
    "llama-server alone": ("passed", "failed"),
    "edgekv alone": ("failed", "passed"),
    "neither": ("failed", "failed"),
    "skipped": ("skipped", "skipped"),
}
SECONDS = 120  # the most that one test may take


def stand_in(server: str, model: str, given: Sequence[str]) -> list[str]:
    """Return the command of a server for the options that llama-server was given.

    server: llama-server's command; "" = edgekv's
    """
    theirs, ours = [], []
    options = list(given)
    while options:
        option = options.pop(0)
        values = [options.pop(0)] if options and not options[0].startswith("-") else []
        if option not in OF_MODELS:
            theirs += [option, *values]
        if option == "--reasoning" and values[0] != "auto":
            ours.append("--thinking" if values[0] == "on" else "--no-thinking")
        if option in TRANSLATED:
            ours += [TRANSLATED[option], *values]
        if option == "--host":
            ours += [option, values[0].split(",")[0]]
    if server:
        return [*shlex.split(server), *theirs, "--model", model]
    if "--parallel" not in ours:
        ours += ["--parallel", "1"]
    return [sys.executable, "-m", "edgekv", "serve", "--memory", MEMORY, "--model", model, *ours]


def pytest_collection_finish() -> None:
    """Change what the tests share, as a plug-in of their pytest: no model is fetched, and each reply has a length."""
    import requests
    import utils  # type: ignore[import-not-found]

    utils.ServerPreset.load_all = staticmethod(lambda: None)
    posts = requests.post

    @wraps(posts)
    def post(url: str, *, json: Any = None, **rest: Any) -> Any:
        generates = any(word in url for word in ("completion", "/infill", "/messages")) and "count_tokens" not in url
        if generates and isinstance(json, dict) and not any(name in json for name in LENGTHS):
            json = {**json, "max_tokens": LONGEST}
        return posts(url, json=json, **rest)

    requests.post = post


def run(file: Path, server: str, model: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Run the tests of a file against a server; returns each test's outcome and the first line of its message."""
    program, report = folder / "server", folder / "report.xml"
    words = [sys.executable, str(Path(__file__).resolve()), "--stand-in", server, model]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o700)
    command = [sys.executable, "-m", "pytest", "-p", Path(__file__).stem, "-p", "no:cacheprovider", "-m", "not slow"]
    command += ["-q", f"--timeout={SECONDS}", f"--junitxml={report}", str(file)]
    paths = os.pathsep.join((str(Path(__file__).parent.resolve()), os.environ.get("PYTHONPATH", "")))
    environment = {"LLAMA_SERVER_BIN_PATH": str(program), "LLAMA_CACHE": str(folder), "PYTHONPATH": paths}
    with (folder / "log").open("w") as log:
        subprocess.run(
            command, cwd=file.parent.parent, env=os.environ | environment, stdout=log, stderr=subprocess.STDOUT
        )
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('unit.')}::{case.get('name')}"
        told = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if told is None else "skipped" if told.tag == "skipped" else "failed"
        outcomes[name] = outcome, "" if told is None else (told.get("message") or "").partition("\n")[0]
    return outcomes


def main() -> None:
    if sys.argv[1:2] == ["--stand-in"]:
        command = stand_in(sys.argv[2], sys.argv[3], sys.argv[4:])
        os.execvp(command[0], command)
    from edgekv.models.catalog import find_model
    from edgekv.testing.programs import print_table, write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path)
    parser.add_argument("--peer", required=True, help="the command of llama-server")
    parser.add_argument("--model", help="path or known name of a GGUF model (default: the default model)")
    parser.add_argument("--only", action="append", help="a file's name, as completion; repeatable")
    parser.add_argument("--json", type=Path, help="write every outcome to this file too")
    options = parser.parse_args()

    files = sorted((options.tests.resolve() / "unit").glob("test_*.py"))
    names = {path: path.stem.removeprefix("test_") for path in files}
    wanted = {*(options.only or names.values())} - LEFT_OUT.keys()
    model, found, rows = str(find_model(options.model)), {"llama-server": {}, "edgekv": {}}, []
    theirs, ours = found.values()
    for path, name in names.items():
        if name not in wanted:
            continue
        for server, outcomes in zip((options.peer, ""), (theirs, ours), strict=True):
            with tempfile.TemporaryDirectory() as folder:
                of_file = run(path, server, model, Path(folder))
            outcomes |= of_file
        write_json(options.json, found)
        counts = Counter((theirs[test][0], ours[test][0]) for test in of_file)
        rows.append([name, *(counts[both] for both in COLUMNS.values())])
        print(f"{name}: {dict(counts)}", file=sys.stderr, flush=True)
    print_table(["", *COLUMNS], rows)
    print("\nllama-server alone:")
    for test, (outcome, _) in theirs.items():
        if outcome == "passed" and ours[test][0] == "failed":
            print(f"  {test}: {ours[test][1]}")
    print("\nleft out:")
    for name, why in LEFT_OUT.items():
        print(f"  test_{name}.py: {why}")


if __name__ == "__main__":
    main()
