"""Connections to MCP servers, by pipes and by HTTP: all that knows the SDK."""
