"""Answers a question about a text with llama-cpp-python as it was installed, at its defaults; prints the answer.

    PYTHON bench/stock_answer.py MODEL TEXT QUESTION THREADS

lowest_limit.py runs it with the Python that has it. It imports nothing of edgekv. The context holds text and answer.
"""

import sys

import llama_cpp

ANSWER = 48  # tokens
TEMPLATE = 128  # tokens, of the chat template


def main() -> None:
    model, text, question, threads = sys.argv[1:]
    with open(text, encoding="utf-8") as file:
        message = f"{file.read()}\n\n{question}"
    vocabulary = llama_cpp.Llama(model, vocab_only=True, verbose=False)
    n_ctx = len(vocabulary.tokenize(message.encode())) + TEMPLATE + ANSWER
    vocabulary.close()
    counts = {"n_threads": int(threads), "n_threads_batch": int(threads)}
    llama = llama_cpp.Llama(model, n_ctx=n_ctx, verbose=False, **counts)
    reply = llama.create_chat_completion([{"role": "user", "content": message}], temperature=0.0, max_tokens=ANSWER)
    print(reply["choices"][0]["message"]["content"])


main()
