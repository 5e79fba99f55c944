"""One request of the client: its states, what ends it, functions of the client that it calls, its error."""
