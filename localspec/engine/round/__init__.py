"""The round: how a token is drawn, verified and committed."""
