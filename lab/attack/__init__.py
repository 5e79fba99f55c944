"""Attacks on all interfaces of the product, seeded and counted: ``python -m lab.attack``."""
