"""The program stays under its memory ceiling, with a longer text too."""

from pathlib import Path

import pytest
from answer import answer

QUESTION = "Where is the house?"


@pytest.fixture
def story(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text("The old house by the river has stood empty for years. " * 12)
    return str(path)


@pytest.mark.memory_ceiling("240MiB", timeout=300)
def test_a_story_is_answered(story):
    assert answer(story, QUESTION)


def test_the_script(memory_ceiling, story):
    script = Path(__file__).with_name("answer.py")
    assert memory_ceiling("240MiB").run_script(script, story, QUESTION).stdout.strip()


def test_a_longer_text_takes_no_more(memory_ceiling, story, tmp_path):
    longer = tmp_path / "longer.txt"
    longer.write_text(Path(story).read_text() * 2)
    first, second = (memory_ceiling("240MiB").run(answer, str(path), QUESTION) for path in (story, longer))
    assert second.peak_bytes < first.peak_bytes * 1.01
