"""A conversation with loaded models: the session, its turns, what is written and what drafts."""
