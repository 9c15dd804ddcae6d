"""From messages to ids: the chat template, the process that renders it, what the caches know."""
