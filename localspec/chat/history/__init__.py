"""Stored conversations: each is a tree of messages, and all are in one SQLite file."""
