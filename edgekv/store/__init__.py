"""Files on the disk: some are whole or not there, some are temporary and gone with their session.

locks          locks of files in use
atomic_write   a file beside another one, which takes its place when it is whole
sections       the format of saved sessions: a header, and arrays (docs/sessions.md)
session_names  the folder of saved sessions, and their names
transcript     roles and texts for people, in Markdown and JSON
temp_array     temporary files that only this process sees, and lists of int32 in them
log            the tokens of a session, as such lists
jsonl          JSON lines that only grow: results of long runs
fingerprint    names of files in results
"""
