"""Answers a question about a text file: python answer.py FILE QUESTION"""

import sys

import edgekv


def answer(path: str, question: str) -> str:
    """The model's answer, in at most 8 tokens."""
    with edgekv.Runtime(memory="240MiB", budget=128, threads=1) as runtime, runtime.session() as session:
        return session.reply(question, files=path, max_tokens=8).text


if __name__ == "__main__":
    print(answer(*sys.argv[1:]))
