"""An endpoint with OpenAI's protocol, through which other programs use the loaded pair."""
