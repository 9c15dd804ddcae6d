"""GGUF files, from their headers alone."""
