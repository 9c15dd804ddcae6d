"""The commands of the chat: their table, their conditions, and their arguments."""
