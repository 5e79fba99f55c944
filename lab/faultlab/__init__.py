"""Faults under load, and what was promised about them. ``python -m lab.faultlab`` runs it; CI runs a small part."""
