"""Readers, which separate thoughts, content and calls while an answer is written."""
