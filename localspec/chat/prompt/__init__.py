"""From messages to ids: the chat template, the process that renders it, and the known ids."""
