"""Files on the disk: some are whole or not there, some are temporary and gone with their session.

shared_files   files in use: opened so that others may replace them, and locked
atomic_write   a file beside another one, which takes its place when it is whole
snapshot_file  the state of a session in a file: a header, sections and a checksum (docs/sessions.md)
snapshot_header  its values, each checked when it is read
session_names  the folder of saved sessions, and their names
transcript     roles and texts for people, in Markdown and JSON
temp_folder    private folders for temporary files with names
temp_array     temporary files that only this process sees, and lists of int32 in them
block_file     many files in one temporary file
log            the tokens of a session, as such lists
jsonl          JSON lines that only grow: results of long runs
fingerprint    names of files in results
"""
