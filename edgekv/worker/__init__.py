"""The loop in a process of its own: the host survives its death.

    in the host      worker_process  Worker: starts the process, carries messages to it, watches it, ends it
    between them     pipe_messages   the messages and their answers as bytes
                     channel         the pipes that carry them
    in the worker    worker_main     runs a Loop
                     frozen          starts it in programs without an interpreter

Two connections join them. On the first the host posts messages and the worker answers them. On the second the worker
gives signs of life, and each side learns that the other is gone.
"""
