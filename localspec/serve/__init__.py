"""An endpoint with OpenAI's and Anthropic's protocols: other programs use the loaded pair."""
