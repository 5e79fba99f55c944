"""Faults under load, checked against the published promises. ``python -m lab.faultlab``; CI runs a small part."""
