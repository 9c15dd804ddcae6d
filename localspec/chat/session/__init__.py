"""A conversation with loaded models: the session, its turns, the writer and the drafting policy."""
