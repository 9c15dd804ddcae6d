"""The memory that a pair needs, from its headers alone, and how to make it fit."""
