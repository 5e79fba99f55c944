"""Rewrites of operators that QNN refuses or computes wrong. Each rewrite is checked to keep the model's results."""
