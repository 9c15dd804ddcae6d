"""Pairs in the chat: loading, listing, fetching, removing, measuring them."""
