"""The loaded pair for editors and other programs: an endpoint that speaks OpenAI's protocol."""
