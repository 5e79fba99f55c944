"""Random attacks on all interfaces of the product, reproducible by their seed: ``python -m lab.attack``."""
