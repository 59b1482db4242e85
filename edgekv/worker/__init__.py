"""The engine in a process of its own: whatever happens to it, the host lives.

    in the host      remote    WorkerEngine and WorkerConversation: what Runtime and Session stand on
                     process   Worker: starts the process, asks it, watches it, ends it
    between them     messages  what they say to each other
                     channel   how it gets there
    in the worker    child     serves a LocalEngine
                     frozen    gets there in programs that have no interpreter to start

Two connections join them. On the first the host asks and the worker answers, strictly in turn. On the second the worker
gives signs of life, and each side learns that the other is gone.
"""
