"""Serves one client: reads its requests, dispatches them to their operations, and answers."""
