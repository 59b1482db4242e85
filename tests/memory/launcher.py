"""Runs a command and says what it held at most, as the kernel counted it when the command had ended.

    python -I -S launcher.py terminal|pipes SECONDS COMMAND...

Prints JSON: status, peak_bytes, output (of a terminal, both streams in one). Its own standard input is the command's.
The kernel gives a process the peak of the one that forked it, so this program is small; it imports nothing else.
"""

import json
import os
import pty
import signal
import sys


def run(in_terminal, seconds, command):
    typed = sys.stdin.buffer.read()
    pid, terminal = pty.fork() if in_terminal else _fork_with_pipe()
    if pid == 0:
        os.execv(command[0], command)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
    signal.alarm(seconds)
    if in_terminal and typed:
        os.write(terminal, typed)
    output = b""
    try:
        while data := os.read(terminal, 1 << 16):
            output += data
    except OSError:  # the other end of the terminal is closed
        pass
    _, status, usage = os.wait4(pid, 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "peak_bytes": usage.ru_maxrss * 1024,
        "output": output.decode(errors="replace"),
    }


def _fork_with_pipe():
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.close(reading)
    os.close(writing)
    return pid, reading


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1] == "terminal", int(sys.argv[2]), sys.argv[3:])))
