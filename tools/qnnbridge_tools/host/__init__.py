"""`qnnbridge host`: the daemon that several applications share, from its start to its end."""
