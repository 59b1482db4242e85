"""Archives: the rows of evicted tokens on the disk, and recall, which fills cells again with what a prompt needs.

session_archive  the archive of one conversation
row_files        their files, which several may read, and marks of what they have
row_folder       those of a session that is kept as it grows
stored_rows      rows in the file of a saved session
space            the archives of an engine, and what each may take of the disk
folders          where such files lie: not on a file system in memory
"""
