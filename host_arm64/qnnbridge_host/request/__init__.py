"""A request of the client: its states, how it ends early, functions of the client that it calls, its error."""
