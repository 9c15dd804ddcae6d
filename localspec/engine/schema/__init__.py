"""From a JSON schema to a grammar that writes nothing else. Pure."""
