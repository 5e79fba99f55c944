"""`qnnbridge cache`: what is kept compiled, why, and how to be rid of it.

- `facts`: reads the cache, changes nothing; `housekeeping`: verifies, prunes, clears;
- `report`: text for a person; `document`: the same as JSON; `command`: the command line.
"""
