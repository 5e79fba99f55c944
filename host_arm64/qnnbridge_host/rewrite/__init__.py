"""Rewrites of what QNN refuses or computes wrong. Each rewrite is verified to keep the model's results."""
