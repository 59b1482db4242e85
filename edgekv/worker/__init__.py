"""The engine in a process of its own, so that nothing that happens to it can take the host along.

    in the host      remote    WorkerEngine and WorkerConversation: what Runtime and Session stand on
                     process   Worker: starts the process, asks it, watches it, ends it
    between them     messages  what they say to each other
                     channel   how it gets there
    in the worker    child     serves a LocalEngine

Two connections join them. On the one the host asks and the worker answers, strictly in turn. On the other the worker
beats, and each side learns there that the other is gone.
"""
