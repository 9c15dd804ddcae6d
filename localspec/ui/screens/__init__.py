"""The screens that cover the conversation for a while."""
