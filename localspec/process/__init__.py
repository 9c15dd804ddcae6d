"""The engine in a process of its own: what is said to it, how, and both ends of the line."""
