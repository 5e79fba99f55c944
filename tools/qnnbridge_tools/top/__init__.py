"""`qnnbridge top`: a live view of the daemon."""
