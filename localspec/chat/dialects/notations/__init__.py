"""The notations that calls and headers are written in, one file each."""
