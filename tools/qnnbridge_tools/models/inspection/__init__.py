"""`qnnbridge inspect`: what is in a model file, and whether a compiled one can run here, without loading QNN."""
