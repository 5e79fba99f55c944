"""`qnnbridge compile`: `compiling` performs the command, `matrix` compiles many models for many chips."""
