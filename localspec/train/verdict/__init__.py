"""What a head is worth: its acceptance on held-out prompts, and its speed here."""
