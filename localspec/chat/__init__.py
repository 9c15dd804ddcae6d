"""Text around the engine: templates, detokenising, stop strings, the conversation."""
