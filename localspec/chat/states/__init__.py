"""What the caches held of conversations, and what conversations said: kept to go on from there."""
