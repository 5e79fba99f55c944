"""Rewrites that let QNN take a model, each proven to compute the same. `qnnbridge fix` and `fix=True` use it."""
