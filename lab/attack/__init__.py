"""Attacks on every door of the product, seeded and counted: ``python -m lab.attack``."""
