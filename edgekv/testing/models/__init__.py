"""Makers of synthetic model files, for tests. They need the `gguf` package."""
