"""What a pair takes of the memory, by its headers alone, and how it is made to fit."""
