"""`qnnbridge compile`."""
