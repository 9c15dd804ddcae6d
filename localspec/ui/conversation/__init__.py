"""The conversation on the screen: input, questions, answers, and the course of a turn."""
