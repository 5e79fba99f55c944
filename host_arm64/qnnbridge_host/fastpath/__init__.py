"""The host's side of the fast path: repeated calls on channels of their own, with tensors in shared memory.

`channel` serves the requests that open channels, and reads, runs and answers calls; `shared_memory` maps the
client's slabs and checks the client's description of a call that lies there. The server creates it for the first
such request; the daemon uses it for its clients. It imports the protocol, `engine` and `request`.
"""
