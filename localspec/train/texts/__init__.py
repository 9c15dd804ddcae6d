"""What a head learns from: prompts, answers of the target, lessons."""
