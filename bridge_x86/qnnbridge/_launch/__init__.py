"""The start of a host: its interpreter, its command line and environment, and the collection of its stderr.

`_host`, the transport and the tools call it. It imports the protocol and `_platform`.
"""
