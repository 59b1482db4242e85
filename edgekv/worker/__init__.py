"""The engine in a process of its own: the host survives its death.

    in the host      remote          WorkerEngine and WorkerConversation: the base of Runtime and Session
                     worker_process  Worker: starts the process, asks it, watches it, ends it
    between them     pipe_messages   the messages and their answers
                     channel         the pipes that carry them
    in the worker    worker_main     serves a LocalEngine
                     frozen          starts it in programs without an interpreter

Two connections join them. On the first the host asks and the worker answers, strictly in turn. On the second the worker
gives signs of life, and each side learns that the other is gone.
"""
