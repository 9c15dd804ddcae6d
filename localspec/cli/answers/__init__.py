"""Commands that answer: `chat`, `run`, `serve`, and `logs` of what was answered."""
