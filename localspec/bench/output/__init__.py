"""A bench's result as text, tables, documents and pictures."""
