"""The training data of a head: prompts, answers of the target, lessons."""
