"""GGUF files, read by their headers alone."""
