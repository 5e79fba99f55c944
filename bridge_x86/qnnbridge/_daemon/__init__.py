"""The application's way to a daemon: finds it, starts it, authenticates, and holds the connection.

`_host` and the tools call it. It imports the protocol, `_platform`, `_supervision` and `_launch`.
"""
