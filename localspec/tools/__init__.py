"""Tools of MCP servers: the servers' settings, their processes, what is offered and allowed."""
