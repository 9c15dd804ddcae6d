"""The meaning of names: references, curated pairs, and reserved names."""
