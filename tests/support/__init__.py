"""What several test files share."""

ENDLESS = "root ::= [a-zA-Z ,.] root"
"""A grammar that no answer under it ever completes: it goes on as long as it may."""
