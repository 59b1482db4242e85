"""What lies on the disk: files that are whole or not there, and private ones that are gone with their session.

locks       whether a file is in use
replacing   a file beside another one, which takes its place when it is whole
sections    the format of saved sessions: what a file says of itself, and its arrays (docs/sessions.md)
named       where sessions are kept by name
transcript  roles and texts for people, in Markdown and JSON
private     lists of numbers that only this process sees
log         what a session read and said, as such lists
lines       JSON lines that only grow: results of long runs
fingerprint names of files in results
"""
