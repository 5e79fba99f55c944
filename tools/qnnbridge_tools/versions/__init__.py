"""`qnnbridge versions`, and the generator of the version table that it shows."""
