"""`qnnbridge cache`: what is kept compiled, why, and how to be rid of it.

`entries` reads, verifies, prunes and clears the cache, and has it as text for a person and as JSON; `command` is
the command line.
"""
