"""What a name stands for: references, curated pairs, names with a meaning of their own."""
