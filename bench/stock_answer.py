"""Answers a question about a text with llama-cpp-python as it was installed, at its defaults; prints the answer.

    PYTHON bench/stock_answer.py MODEL TEXT QUESTION THREADS TOKENS

lowest_limit.py runs it with the Python that has it. It imports nothing of edgekv. The context holds the text and an
answer of TOKENS.
"""

import sys

import llama_cpp

TEMPLATE = 128  # tokens, of the chat template


def main() -> None:
    model, text, question, threads, tokens = sys.argv[1:]
    n_answer = int(tokens)
    with open(text, encoding="utf-8") as file:
        message = f"{file.read()}\n\n{question}"
    vocabulary = llama_cpp.Llama(model, vocab_only=True, verbose=False)
    n_ctx = len(vocabulary.tokenize(message.encode())) + TEMPLATE + n_answer
    vocabulary.close()
    counts = {"n_threads": int(threads), "n_threads_batch": int(threads)}
    llama = llama_cpp.Llama(model, n_ctx=n_ctx, verbose=False, **counts)
    reply = llama.create_chat_completion([{"role": "user", "content": message}], temperature=0.0, max_tokens=n_answer)
    print(reply["choices"][0]["message"]["content"])


main()
