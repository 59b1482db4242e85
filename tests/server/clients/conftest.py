"""A server over the default model under 256 MiB, as a process, for clients that programs use."""

from __future__ import annotations

import gc
import re
import subprocess
import threading
import warnings
from dataclasses import dataclass

import pytest
from children import SUITE_S, started
from command import COMMAND

pytest.importorskip("uvicorn")

CEILING = 256 << 20
QUESTION = "What is the capital of France?"
KEY = "a-key-of-the-tests"
MODEL = "smollm2"


@dataclass(frozen=True)
class Server:
    """The address of a server, its key and its model."""

    url: str
    key: str = KEY
    model: str = MODEL


# clients see no difference; servers whose model is in a worker are tested by test_pairs.py and test_session_pool.py too
@pytest.fixture(scope="session", params=["here", pytest.param("isolated", marks=pytest.mark.nightly)])
def server(default_model, request):
    """A server that two requests may wait at, so that a fourth is refused; its model is here, or in a worker."""
    options = ["--memory", "256MiB", "--port", "0", "--name", MODEL, "--api-key", KEY, "--queue", "2", "--threads", "1"]
    options += ["--isolated"] if request.param == "isolated" else []
    with started([*COMMAND, "serve", *options], limit_s=SUITE_S, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"(http://\S+)/v1", line):
                break
        else:
            pytest.fail(f"the server did not start: {''.join(said)}")
        rest = threading.Thread(target=process.stderr.read)  # lets the server go on writing
        rest.start()
        yield Server(found[1])
        process.terminate()
        assert process.wait() == 0
        rest.join()


@pytest.fixture
def forgotten():
    """Close what a client leaves open, after the test and without a warning: it is the client's own affair."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture(scope="session")
def long_text():
    """A text whose reading takes seconds."""
    return " ".join(f"The house number {i} is {'red' if i % 2 else 'blue'}." for i in range(200))
