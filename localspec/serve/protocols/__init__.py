"""The protocols: each file reads one protocol's requests and writes its replies."""
