"""Tools in the chat: the servers, the calls that answers make, and the user's consent."""
