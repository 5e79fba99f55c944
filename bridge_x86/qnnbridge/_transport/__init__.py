"""The connection to one host process.

`channel` makes calls over its pipes, `open_requests` keeps the state of every call. The supervisor and `_replay`
call it; the fast path adds channels beside the connection. It imports the protocol and `_platform`.
"""
