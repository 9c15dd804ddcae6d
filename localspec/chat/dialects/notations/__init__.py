"""The notations of calls and headers, one file each."""
