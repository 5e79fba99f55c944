"""One host process, from its start to its end, and the calls made to it."""
