"""`edgekv complete`: a text goes on as it stands, by models with and without a chat template."""

from __future__ import annotations

import json

import pytest
from command import SMALL, run_here, run_program, words
from diagonals import COMMANDS_HERE_BY_DAY

import edgekv

TEXT = words(60)


@pytest.fixture(scope="module")
def base(tiny_model, tmp_path_factory):
    """A model whose chat template has another name, as if it had none."""
    path = tmp_path_factory.mktemp("base") / "base.gguf"
    path.write_bytes(tiny_model(n_layer=2, n_ctx_train=2048).read_bytes().replace(b"chat_template", b"chat_templatX"))
    return path


def run(command, model, *arguments, stdin=""):
    return run_here(command, "-m", model, *SMALL, "--max-tokens", 8, *arguments, stdin=stdin)


def completion(model, text):
    """Return the completion of a text by `Session.generate`, which the command should print."""
    with edgekv.Runtime(model, memory="4GiB", budget=64, block=32, threads=1) as rt, rt.session() as session:
        return "".join(session.generate(text, max_tokens=8, sampling=edgekv.Sampling(temperature=0.0)))


def test_files_and_the_text_follow_each_other_as_they_stand(base, tmp_path):
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text(TEXT[:100])
    second.write_text(TEXT[100:])
    result = run("complete", base, "-f", first, "-f", second, " and then")
    assert result.returncode == 0, result.stderr
    assert result.stdout == completion(base, TEXT + " and then") + "\n"


def test_what_is_piped_in_is_continued(base):
    assert run("complete", base, stdin=TEXT).stdout == completion(base, TEXT) + "\n"


def test_the_report_is_that_of_ask(base):
    told = json.loads(run_program("complete", "-m", base, *SMALL, "--max-tokens", 8, TEXT, "--json").stdout)
    assert told["answer"] == completion(base, TEXT)
    assert told["generated_tokens"] == 8
    assert told["memory"]["peak_rss_bytes"] <= told["memory"]["planned_peak_bytes"]


def test_a_reply_may_follow_a_grammar(base, tmp_path):
    grammar = tmp_path / "yes.lark"
    grammar.write_text('start: "yes"')
    assert run("complete", base, "Is it?", "--grammar", grammar).stdout == "yes\n"


def test_nothing_to_continue_is_refused_before_the_model_is_loaded(base):
    result = run("complete", base.with_name("none.gguf"))
    assert result.returncode == 2
    assert result.stderr.startswith("edgekv: there is nothing to continue")


@pytest.mark.parametrize("isolated", COMMANDS_HERE_BY_DAY)
def test_a_template_of_a_file_has_base_models_answer(base, tmp_path, isolated):
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}[assistant]")
    result = run("ask", base, "Hello", "--chat-template", template, "--max-tokens", 3, "--json", *isolated)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["generated_tokens"] <= 3
    template.write_text("{% for m %}")
    refused = run("ask", base, "Hello", "--chat-template", template, *isolated)
    assert refused.returncode == 2
    assert "own.jinja' cannot be used: expected token 'in'" in refused.stderr


@pytest.mark.parametrize("command", ["ask", "chat"])
def test_commands_that_need_a_template_name_this_one(base, command):
    result = run(command, base, *(["Hello"] if command == "ask" else []), stdin="" if command == "ask" else "Hello\n")
    assert "has no chat template; give one (--chat-template), continue a text with" in result.stderr
    assert "edgekv complete" in result.stderr
