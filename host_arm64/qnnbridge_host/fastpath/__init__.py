"""The host's side of the fast path: repeated calls on channels of their own, with tensors in shared memory.

`open_channels` serves the requests that open channels and attach memory, `channel` reads, runs and answers calls,
`plans` checks the client's description of a call, `shared_memory` maps the client's slabs. The server creates it
for the first such request; the daemon uses it for its clients. It imports the protocol, `engine` and `request`.
"""
