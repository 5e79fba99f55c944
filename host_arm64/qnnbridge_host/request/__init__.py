"""Requests of a client: their states, early end, calls of the client's functions, and errors."""
