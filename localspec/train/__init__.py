"""A head for one's own target: prompts, the target's answers, states of it, a head that learns.

Only `network`, `optim` and `learning` know torch; nothing here imports it before it is needed.
"""
