"""Tables of papers, repeated in their own setting: `python -m bench.papers NAME` (README.md)."""
