"""Commands about pairs and models: `list`, `show`, `pull`, `rm`, `train`."""
