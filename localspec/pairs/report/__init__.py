"""What is known of a pair before it is fetched or loaded."""
