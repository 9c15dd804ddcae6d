"""What several test files share."""

ENDLESS = "root ::= [a-zA-Z ,.] root"
"""A grammar that no answer under it ever completes: it goes on as long as it may."""

ROOMY = 8192
"""A context that takes the toy more than ten seconds to fill: two where a machine is faster."""

GOES_ON = ("--grammar", ENDLESS, "--ctx-size", str(ROOMY), "--no-repeat-stop")
"""Options for an answer that does not end by itself before a test stops it, or kills something."""
