"""Repeated calls: channels of their own, plans, shared memory."""
