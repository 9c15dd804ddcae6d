"""The engine in a separate process: the messages, the transport and both ends."""
