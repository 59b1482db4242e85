"""Run the tests of llama.cpp's server against `edgekv serve`, and against llama-server with the same model.

TESTS is the folder tools/server/tests of llama.cpp's source; nothing of it is part of this project. Its tests name
models of Hugging Face. Both servers answer with one model instead, by a stand-in for llama-server that translates its
options. So a test that asks for words of another model fails with both, and says nothing; a test that llama-server
alone passes is a difference. Those are listed with their messages.

Files about what edgekv has not are left out, and the last table says why. The tests need wget and filelock.

    uv run --no-sync --with wget --with filelock python scripts/llama_server_tests.py TESTS --peer llama-server
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
from pathlib import Path

from edgekv.models.catalog import find_model
from edgekv.testing.programs import print_table, write_json

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
OF_MODELS = ("--hf-repo", "--hf-file", "--model-url", "--mmproj-url", "--model", "--model-draft")
FLAGS = ("--offline", "--metrics", "--slots", "--no-slots", "--jinja", "--no-jinja", "--no-ui", "--cont-batching")
MEMORY = "512MiB"


def stand_in(server: str, model: str, given: Sequence[str]) -> list[str]:
    """Return the command of a server for the options that llama-server was given.

    server: llama-server's command; "" = edgekv's
    """
    kept, translated = [], []
    options = iter(given)
    for option in options:
        if option in FLAGS or not option.startswith("--"):
            kept.append(option)
            continue
        value = next(options) if option != "--embedding" else ""
        if option not in OF_MODELS:
            kept += [option, value] if value else [option]
        if option in TRANSLATED:
            translated += [TRANSLATED[option], value]
        if option == "--host":
            translated += [option, value.split(",")[0]]
    if server:
        return [*shlex.split(server), *kept, "--model", model]
    return [sys.executable, "-m", "edgekv", "serve", "--memory", MEMORY, "--model", model, *translated]


def run(tests: Path, files: Sequence[Path], server: str, model: str, folder: Path) -> dict[str, tuple[str, str]]:
    """Run the tests against a server; returns each test's outcome and the first line of its message."""
    program, report = folder / "server", folder / "report.xml"
    words = [sys.executable, str(Path(__file__).resolve()), "--stand-in", server, model]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o700)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    command += [f"--junitxml={report}", *map(str, files)]
    environment = {**os.environ, "LLAMA_SERVER_BIN_PATH": str(program), "LLAMA_CACHE": str(folder)}
    subprocess.run(command, cwd=tests, env=environment, stdout=subprocess.DEVNULL)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path)
    parser.add_argument("--peer", required=True, help="the command of llama-server")
    parser.add_argument("--model", help="path or known name of a GGUF model (default: the default model)")
    parser.add_argument("--only", action="append", help="a file's name, as completion; repeatable")
    parser.add_argument("--json", type=Path, help="write every outcome to this file too")
    options = parser.parse_args()

    names = {path: path.stem.removeprefix("test_") for path in sorted((options.tests / "unit").glob("test_*.py"))}
    wanted = {*(options.only or names.values())} - LEFT_OUT.keys()
    files = [path.resolve() for path, name in names.items() if name in wanted]
    model, outcomes = str(find_model(options.model)), {}
    for server in (shlex.join(shlex.split(options.peer)), ""):
        with tempfile.TemporaryDirectory() as folder:
            outcomes[server] = run(options.tests.resolve(), files, server, model, Path(folder))
    theirs, ours = outcomes.values()
    write_json(options.json, {"llama-server": theirs, "edgekv": ours})

    counts: dict[str, Counter[str]] = {}
    for name, (outcome, _) in theirs.items():
        ours_outcome = ours.get(name, ("failed", ""))[0]
        both = "both" if outcome == ours_outcome == "passed" else "neither"
        which = "skipped" if outcome == "skipped" else both if outcome == ours_outcome else outcome + "/" + ours_outcome
        counts.setdefault(name.partition("::")[0], Counter())[which] += 1
    columns = {"both": "both pass", "passed/failed": "llama-server alone", "failed/passed": "edgekv alone"}
    columns |= {"neither": "neither", "skipped": "skipped"}
    print_table(["", *columns.values()], [[name, *(count[key] for key in columns)] for name, count in counts.items()])
    print("\nllama-server alone:")
    for name, (outcome, _) in theirs.items():
        if outcome == "passed" and ours[name][0] == "failed":
            print(f"  {name}: {ours[name][1]}")
    print("\nleft out:")
    for name, why in LEFT_OUT.items():
        print(f"  test_{name}.py: {why}")


if __name__ == "__main__":
    main()
