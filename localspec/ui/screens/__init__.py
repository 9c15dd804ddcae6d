"""Everything that covers the conversation for a while."""
