"""What can be loaded: GGUF headers, the catalogue of pairs, the Hub, and the memory plan."""
