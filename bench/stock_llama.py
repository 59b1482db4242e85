"""Reads and generates with llama-cpp-python as it was installed, at its defaults.

as_installed.py runs it with the Python that has it. It takes {"model", "text", "threads", "generate"} as JSON on
standard input. It prints, as JSON, "tokens" that were read; "times", pairs of wall and processor time in seconds before
reading, after it and after generating; and "peak" in bytes. It imports nothing of edgekv.
"""

import json
import sys
import time

import llama_cpp


def clocks() -> tuple[float, float]:
    """Wall time and processor time of all threads, in seconds."""
    return time.perf_counter(), time.process_time()


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

    times = [clocks()]
    llama.eval(tokens)
    token = llama.sample(temp=0.0)
    times.append(clocks())
    for _ in range(case["generate"]):
        llama.eval([token])
        token = llama.sample(temp=0.0)
    times.append(clocks())
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(json.dumps({"tokens": len(tokens), "times": times, "peak": peak}))


main()
