"""`qnnbridge cache`: list, verify and remove compiled models in the cache.

`entries` reads, verifies, prunes and clears the cache, and formats it as text and as JSON; `command` is the command
line.
"""
