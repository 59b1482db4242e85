"""Archives: the rows of evicted tokens on the disk, and recall, which fills cells again with what a prompt needs.

session_archive  the archive of one conversation
recalling        cells filled again with what a prompt needs
row_files        files of rows, which several archives may read, and marks of their tokens
row_folder       files of rows of a session that is kept as it grows
stored_rows      rows in the file of a saved session
space            the archives of an engine, and the bytes that each may take on the disk
folders          the folder of such files, which is not on a file system in memory
"""
