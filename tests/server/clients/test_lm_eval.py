"""lm-eval against a server: a task of the test's own, by log probabilities and by replies."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from children import LIMIT_S

from edgekv.testing.server_process import serving

if importlib.util.find_spec("lm_eval") is None:
    pytest.skip("lm_eval is not installed", allow_module_level=True)

pytestmark = pytest.mark.nightly

CITIES = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo"}
CHOOSES = """
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{{{country}}}} is"
doc_to_choice: "{{{{cities}}}}"
doc_to_target: "{{{{cities.index(city)}}}}"
metric_list: [{{metric: acc}}]
"""
SAYS = """
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {path}}}}}
test_split: test
output_type: generate_until
doc_to_text: "The capital of {{{{country}}}} is {{{{city}}}}. What is the capital of {{{{country}}}}?"
doc_to_target: "{{{{city}}}}"
generation_kwargs: {{max_gen_toks: 40, until: ["\\n"], temperature: 0}}
filter_list: [{{name: found, filter: [{{function: regex, regex_pattern: "({cities})"}}, {{function: take_first}}]}}]
metric_list: [{{metric: exact_match}}]
"""


@pytest.mark.parametrize(
    ("model", "path", "task", "further"),
    [
        ("local-completions", "/v1/completions", CHOOSES, ()),
        ("local-chat-completions", "/v1/chat/completions", SAYS, ("--apply_chat_template",)),
    ],
)
def test_a_task_is_scored(default_model, tmp_path, model, path, task, further):
    data = tmp_path / "capitals.json"
    rows = [{"country": country, "city": city, "cities": list(CITIES.values())} for country, city in CITIES.items()]
    data.write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "capitals.yaml").write_text(task.format(path=data, cities="|".join(CITIES.values())))
    caches = {name: str(tmp_path) for name in ("HF_HOME", "XDG_CACHE_HOME")}
    variables = {**os.environ, **caches, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    with serving(["--memory", "300MiB", "--model", str(default_model)]) as server:  # lm-eval bears no key here
        arguments = f"model=edgekv,base_url={server.url}{path},num_concurrent=2,max_retries=1"
        arguments += ",tokenizer_backend=remote" if model == "local-completions" else ""
        command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments, *further]
        command += ["--tasks", "capitals", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = (tmp_path / "out").rglob("results_*.json")
    scores = json.loads(found.read_text())["results"]["capitals"]
    (score,) = (value for name, value in scores.items() if name.startswith(("acc,", "exact_match,")))
    assert score >= 0.75
