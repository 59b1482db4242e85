"""Reads and generates with llama-cpp-python as it was installed, at its defaults.

as_installed.py runs it with the Python that has it. It takes {"model", "text", "threads", "generate"} as JSON on
standard input, prints tokens a second and the peak in bytes as JSON, and imports nothing of edgekv.
"""

import json
import sys
import time

import llama_cpp


def main() -> None:
    case = json.load(sys.stdin)
    text = case["text"].encode()
    model = llama_cpp.Llama(case["model"], vocab_only=True, verbose=False)
    n_ctx = len(model.tokenize(text)) + case["generate"] + 8
    model.close()
    threads = {"n_threads": case["threads"], "n_threads_batch": case["threads"]}  # None = its own default
    llama = llama_cpp.Llama(case["model"], n_ctx=n_ctx, verbose=False, **threads)
    tokens = llama.tokenize(text)
    llama.eval(tokens[:64])  # weights come in
    llama.reset()

    started = time.perf_counter()
    llama.eval(tokens)
    token = llama.sample(temp=0.0)
    read = time.perf_counter()
    for _ in range(case["generate"]):
        llama.eval([token])
        token = llama.sample(temp=0.0)
    said = time.perf_counter()
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    figures = {"reading": len(tokens) / (read - started), "generating": case["generate"] / (said - read), "peak": peak}
    print(json.dumps(figures | {"tokens": len(tokens)}))


main()
