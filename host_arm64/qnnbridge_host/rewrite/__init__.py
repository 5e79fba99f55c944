"""Rewrites for running a model on QNN, each verified to compute the same; for `qnnbridge fix` and `fix=True`."""
