"""`qnnbridge cache`: what is kept compiled, why, and how to be rid of it.

`facts` reads, verifies, prunes and clears the cache; `report` has it as text for a person and as JSON; `command` is
the command line.
"""
