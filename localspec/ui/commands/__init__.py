"""The commands of the chat: one table, what each needs, and what may follow it."""
