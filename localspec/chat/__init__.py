"""The text level above the engine: conversations, prompts, sessions, stored history."""
