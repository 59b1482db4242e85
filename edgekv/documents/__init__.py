"""Documents (PDF, DOCX, EPUB, HTML) as texts, each converted by a process of its own with limits of its own."""
