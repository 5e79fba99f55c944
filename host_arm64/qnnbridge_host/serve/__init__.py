"""Serving one client: read its requests, dispatch them to their operations, and send the answers."""
