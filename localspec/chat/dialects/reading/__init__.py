"""How answers are read: thoughts, content and calls told apart as text comes in."""
