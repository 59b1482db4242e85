"""scripts/release.py: a release whose version, changelog, tag and packages disagree is refused, by name."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = (
    '[build-system]\nrequires = ["x"]\n\n[project]\nname = "edgekv"\nversion = "{}"\n\n[tool.x]\nversion = "9.9.9"\n'
)
CMAKE = "cmake_minimum_required(VERSION 3.24)\nproject(edgekv VERSION {} LANGUAGES C CXX)\n"
CHANGELOG = "# Changelog\n\n## {}\n\n- A change.\n\n## 0.1.0 (2026-01-01)\n\n- The first.\n"


@pytest.fixture(scope="module")
def release():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(release, monkeypatch, tmp_path, capsys):
    """Run the script over a checkout of the given versions; returns its status and what it prints."""

    def run(*arguments, package="1.2.0", library="1.2.0", heading="1.2.0 (2026-11-25)", changelog=CHANGELOG):
        (tmp_path / "native").mkdir(exist_ok=True)
        (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(package))
        (tmp_path / "native" / "CMakeLists.txt").write_text(CMAKE.format(library))
        (tmp_path / "CHANGELOG.md").write_text(changelog.format(heading))
        monkeypatch.setattr(release, "ROOT", tmp_path)
        monkeypatch.setattr(sys, "argv", ["release.py", "--check", *map(str, arguments)])
        status = release.main()
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def packages(folder, release, version="1.2.0"):
    """Fill a folder with empty packages of a version, named as the build names them."""
    folder.mkdir()
    platforms = [platform.replace("_*_", "_2_28_") for platform in release.PLATFORMS]
    platforms[0] = "manylinux_2_27_x86_64.manylinux_2_28_x86_64"
    for name in (f"edgekv-{version}.tar.gz", *(f"edgekv-{version}-py3-none-{platform}.whl" for platform in platforms)):
        (folder / name).touch()
    return folder


def test_this_checkout_agrees_with_itself(release):
    version = release.version_of(ROOT)
    release.check_changelog(ROOT, version, released=False)


def test_a_release_that_agrees(run):
    assert run("--tag", "v1.2.0") == (0, "edgekv 1.2.0: all agrees\n")
    assert run() == (0, "edgekv 1.2.0: all agrees\n")
    assert run(heading="Unreleased")[0] == 0
    assert run("--tag", "v1.2.0rc1", package="1.2.0rc1", heading="1.2.0rc1 (2026-11-25)")[0] == 0
    assert run("--tag", "v1.2.0", changelog="# Changelog\n\n## {}\n\nA word.\n\n### Server\n\n- A change.\n")[0] == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"library": "1.1.0"}, "pyproject.toml names 1.2.0 and native/CMakeLists.txt names 1.1.0; give both the same"),
        ({"package": "soon"}, "pyproject.toml names no version such as 1.2.3"),
        ({"library": "1.2"}, "native/CMakeLists.txt names no version such as 1.2.3"),
        (
            {"heading": "Unreleased"},
            "begins with the entry 'Unreleased', but the version is 1.2.0; name the entry '## 1.2.0 (",
        ),
        (
            {"heading": "1.2.0"},
            "begins with the entry '1.2.0', but the version is 1.2.0; name the entry '## 1.2.0 (YYYY",
        ),
        ({"heading": "1.1.0 (2026-11-25)"}, "begins with the entry '1.1.0 (2026-11-25)', but the version is 1.2.0"),
        ({"changelog": "# Changelog\n"}, "begins with the entry '', but the version is 1.2.0"),
        ({"changelog": "## {}\n\n## 0.1.0 (2026-01-01)\n\n- The first.\n"}, "has no change below '1.2.0 (2026-11-25)'"),
    ],
)
def test_a_release_that_disagrees_is_refused_in_a_line(run, changed, message):
    status, printed = run("--tag", "v1.2.0", **changed)
    assert status == 1
    assert message in printed
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("tag", ["v1.2.1", "1.2.0", "v1.2.0-1"])
def test_another_tag_is_refused(run, tag):
    status, printed = run("--tag", tag)
    assert (status, printed) == (
        1,
        f"release.py: the tag is {tag}, but the version is 1.2.0; tag this commit v1.2.0, or change the version\n",
    )


def test_all_packages_of_a_version_are_there_and_nothing_else(run, release, tmp_path):
    folder = packages(tmp_path / "dist", release)
    assert run("--dist", folder)[0] == 0
    (folder / "edgekv-1.2.0-py3-none-win_arm64.whl").rename(folder / "edgekv-1.1.0-py3-none-win_arm64.whl")
    status, printed = run("--dist", folder)
    assert (status, "one edgekv-1.2.0-py3-none-win_arm64.whl, and holds none" in printed) == (1, True)
    (folder / "edgekv-1.2.0-py3-none-win_arm64.whl").touch()
    status, printed = run("--dist", folder)
    assert (status, "holds edgekv-1.1.0-py3-none-win_arm64.whl, no package of 1.2.0; remove it" in printed) == (1, True)
    (folder / "edgekv-1.1.0-py3-none-win_arm64.whl").unlink()
    (folder / "edgekv-1.2.0-py3-none-macosx_13_0_arm64.whl").touch()
    status, printed = run("--dist", folder)
    assert (status, "and holds two: " in printed) == (1, True)
    assert run("--dist", tmp_path / "none")[0] == 1


def test_the_workflow_builds_the_platforms_that_a_release_needs(release):
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    built = re.findall(r"wheel: cp312-(\w+),", workflow)
    assert sorted(built) == sorted(platform.replace("_*_", "_") for platform in release.PLATFORMS)
