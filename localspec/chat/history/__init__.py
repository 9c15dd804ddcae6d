"""Conversations that outlive the program: a tree of messages each, in one SQLite file."""
