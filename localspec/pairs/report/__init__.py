"""What is known about a pair before it is fetched or loaded."""
