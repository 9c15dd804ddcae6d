"""Trains a head for the user's own target: prompts, the target's answers, its states, learning.

Only `network`, `optim` and `learning` use torch; nothing here imports it before it is needed.
"""
