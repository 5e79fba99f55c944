"""Rewrites with which QNN supports a model or computes it right. Each rewrite is verified to keep the results."""
