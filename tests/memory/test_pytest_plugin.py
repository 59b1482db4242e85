"""The pytest plug-in, as its users meet it: runs of small test files, each with processes of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

EXAMPLE = Path(__file__).parents[2] / "examples" / "memory-ceiling"

# A function for the fixture; the fresh process imports it from its module.
WORK = """
import os, sys

def fill(n_mib):
    block = bytearray(n_mib << 20)
    block[::4096] = b"x" * len(block[::4096])
    return os.getpid()
"""


@pytest.fixture(autouse=True)
def no_other_plugins(pytester, monkeypatch):
    """pytest-qt takes tens of MiB in every run, where it is installed, and langsmith's plug-in a second."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:pytest-qt -p no:langsmith_plugin")


@pytest.fixture
def run(pytester):
    """A function that runs a test file, and gives pytest's result."""
    pytester.makepyfile(work=WORK)
    pytester.makeini("[pytest]\naddopts = --strict-markers")

    def make_and_run(source, *arguments):
        pytester.makepyfile("import os, time, pytest\nfrom pathlib import Path\nfrom work import fill\n" + source)
        return pytester.runpytest(*arguments)

    return make_and_run


def test_loading_it_loads_nothing_else():
    script = """
import json, sys, pytest, argparse
before = set(sys.modules)
import edgekv.testing.pytest_plugin
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300
    ).stdout
    assert json.loads(loaded) == ["edgekv", "edgekv.errors", "edgekv.testing", "edgekv.testing.pytest_plugin"]


def test_a_marked_test_runs_in_a_process_of_its_own(run, pytester):
    run(
        """
@pytest.fixture(scope="module")
def module_pid():
    yield os.getpid()

def test_here(module_pid):
    Path("here").write_text(str(module_pid))

@pytest.mark.memory_ceiling("512MiB")
@pytest.mark.parametrize("kind", ["a/b", "c::d [e]", "http://f/./g"])
def test_there(kind, module_pid, tmp_path, monkeypatch):
    assert module_pid == os.getpid()
    (tmp_path / "x").write_text(kind)
    Path(f"there-{os.getpid()}").touch()

def test_here_again(module_pid):
    assert Path("here").read_text() == str(module_pid)
"""
    ).assert_outcomes(passed=5)
    assert len(list(pytester.path.glob("there-*"))) == 3


def test_over_the_ceiling_fails_with_the_table(run):
    result = run(
        """
@pytest.mark.memory_ceiling("100MiB")
def test_over():
    fill(100)

@pytest.mark.memory_ceiling("100MiB")
def test_under():
    fill(1)
"""
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.re_match_lines(
        [
            r"the process held 1\d\d\.\d MiB, \d+\.\d MiB more than its ceiling of 100\.0 MiB",
            r"  resident at start +\d+\.\d MiB",
            r"  grown since +(99|10\d)\.\d MiB",
            r"  peak +1\d\d\.\d MiB",
            r"  ceiling +100\.0 MiB",
            r"  over by +\d+\.\d MiB",
        ]
    )
    result.stdout.no_fnmatch_line("*planned*")


def test_the_parents_peak_does_not_count(run):
    """A forked process, and ru_maxrss even of a new program, would begin with it."""
    run(
        """
fill(150)

def test_run(memory_ceiling):
    assert memory_ceiling("100MiB").run(fill, 10).peak_bytes < 100 << 20
"""
    ).assert_outcomes(passed=1)


@pytest.mark.nightly
def test_outcomes_and_output_come_through(run):
    result = run(
        """
pytestmark = pytest.mark.memory_ceiling("100MiB")

def test_fails():
    print("some output")
    two = 2
    assert two == 3

def test_skips():
    pytest.skip("not today")

@pytest.mark.xfail
def test_xfails():
    assert False

@pytest.mark.xfail
def test_xfails_by_size():
    fill(120)

@pytest.mark.xfail(strict=True)
def test_xpasses():
    pass

@pytest.fixture
def broken():
    yield
    raise ValueError("broken teardown")

def test_teardown(broken):
    pass
""",
        "-rs",
    )
    result.assert_outcomes(passed=1, failed=2, skipped=1, xfailed=2, errors=1)
    lines = ["*assert 2 == 3", "*Captured stdout call*", "some output", "SKIPPED*test_outcomes*not today"]
    result.stdout.fnmatch_lines(["*broken teardown*"])
    result.stdout.fnmatch_lines(lines)


def test_a_blocked_plug_in_is_not_imported_there_either(run):
    """Packages that it imports would count as memory of the test."""
    pytest.importorskip("anyio.pytest_plugin")
    run(
        """
import sys

@pytest.mark.memory_ceiling("512MiB")
def test_there():
    assert "anyio.pytest_plugin" not in sys.modules
""",
        *("-p", "no:anyio"),
    ).assert_outcomes(passed=1)


def test_a_crash_and_a_hang_are_failures(run):
    result = run(
        """
@pytest.mark.memory_ceiling("512MiB")
def test_crash():
    os.write(2, b"last words")
    os.abort()

@pytest.mark.memory_ceiling("512MiB", timeout=2)
def test_hang():
    time.sleep(60)

def test_next():
    pass
"""
    )
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["the fresh process was killed by SIGABRT before its peak could be read"])
    result.stdout.fnmatch_lines(["the fresh process was killed after its 2 s;*raise timeout="])


def test_options_of_the_run_reach_the_fresh_one(run, pytester):
    pytester.makeconftest(
        """
def pytest_addoption(parser):
    parser.addoption("--flavour", default="plain")
"""
    )
    run(
        """
@pytest.mark.memory_ceiling("512MiB")
def test_marked(pytestconfig, tmp_path):
    assert pytestconfig.getoption("flavour") == "vanilla"
    assert pytestconfig.getini("addopts") == ["--strict-markers"]

def test_left_out():
    assert False
""",
        *("--flavour", "vanilla", "-k", "marked", "-x", "--junitxml", "junit.xml", "--basetemp", "tmp"),
    ).assert_outcomes(passed=1, deselected=1)
    assert 'name="peak_rss_bytes" value="' in Path(pytester.path, "junit.xml").read_text()


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ('"lots"', "size 'lots' is not understood*MiB*"),
        ("", "memory_ceiling() is not understood; write*"),
        ('"1GiB", timeout=0', "timeout=0 is not possible*"),
        ('"1GiB", 5, 6', "memory_ceiling('1GiB', 5, 6) is not understood*"),
    ],
)
def test_a_marker_that_cannot_work_stops_the_run(run, marker, message):
    result = run(f"@pytest.mark.memory_ceiling({marker})\ndef test_it():\n    pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *::test_it: *{message}"])


def test_the_fixture_runs_functions(run):
    result = run(
        """
from edgekv import ConfigError
from edgekv.testing.ceiling import OverCeilingError
from edgekv.testing.fresh_process import FreshProcessError

def test_value(memory_ceiling):
    run = memory_ceiling("100MiB").run(fill, n_mib=20)
    assert run.value != os.getpid()
    assert 20 << 20 < run.peak_bytes < 80 << 20
    assert run.measured.start < run.peak_bytes

def test_over(memory_ceiling):
    with pytest.raises(OverCeilingError, match="more than its ceiling of 100.0 MiB") as caught:
        memory_ceiling("100MiB").run(fill, 100)
    assert caught.value.measured.peak > 100 << 20

def test_raised(memory_ceiling):
    with pytest.raises(TypeError) as caught:
        memory_ceiling("100MiB").run(fill, "many")
    assert 'work.py", line' in str(caught.value.__cause__)

def test_unpicklable(memory_ceiling):
    with pytest.raises(ConfigError, match="lambda.*cannot be sent"):
        memory_ceiling("100MiB").run(lambda: 1)
    with pytest.raises(ConfigError, match="open returns cannot be sent back"):
        memory_ceiling("100MiB").run(open, __file__)

def test_died(memory_ceiling):
    with pytest.raises(FreshProcessError, match="ended with status 3 before its peak"):
        memory_ceiling("100MiB").run(os._exit, 3)

def test_failed(memory_ceiling):
    with pytest.raises(FreshProcessError, match="Failed: there"):
        memory_ceiling("100MiB").run(pytest.fail, "there")
"""
    )
    result.assert_outcomes(passed=6)


def test_the_fixture_runs_scripts(run, pytester):
    pytester.makepyfile(
        script="""
if __name__ == "__main__":
    import sys, work
    print("argument", sys.argv[1])
    work.fill(20)
    sys.exit(sys.argv[1] == "bad" and "it is bad")
"""
    )
    result = run(
        """
from edgekv import ConfigError

def test_good(memory_ceiling):
    run = memory_ceiling("100MiB").run_script("script.py", "good")
    assert (run.stdout.split(), run.stderr, run.value) == (["argument", "good"], "", None)
    assert 20 << 20 < run.peak_bytes < 100 << 20

def test_missing(memory_ceiling):
    with pytest.raises(ConfigError, match="no script 'none.py'"):
        memory_ceiling("100MiB").run_script("none.py")

def test_bad(memory_ceiling):
    memory_ceiling("100MiB").run_script("script.py", "bad")

def test_over(memory_ceiling):
    memory_ceiling("20MiB").run_script("script.py", "good")
"""
    )
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(["*FreshProcessError: script.py ended with status 1", "*it is bad"])
    result.stdout.fnmatch_lines(["*OverCeilingError: the process held * more than its ceiling of 20.0 MiB"])


def test_a_runtimes_plan_is_in_the_table(run, tiny_model):
    result = run(
        f"""
import edgekv

@pytest.mark.memory_ceiling("20MiB")
def test_over():
    with edgekv.Runtime({str(tiny_model())!r}, memory="4GiB", budget=64, block=32, threads=1):
        pass
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [
            "planned by edgekv",
            r"  python +\d+\.\d MiB",
            r"  kv +\d+\.\d KiB",
            r"  planned peak +\d+\.\d MiB",
            "measured",
        ]
    )


@pytest.mark.nightly  # The default model is loaded; test_ceiling.py tests the same.
def test_the_example(default_model, pytester):
    folder = shutil.copytree(EXAMPLE, pytester.path / "example")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", str(folder)], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stdout
    assert "3 passed" in result.stdout
