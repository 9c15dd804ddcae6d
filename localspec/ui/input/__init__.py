"""The input: typing, pastes, attached files and completion."""
