"""The quick way for calls that are repeated with the same names, types and shapes.

`shapes` finds such a call again, `channels` keeps the streams that carry it and `channel` is one of them, `memory`
is what its tensors lie in, `arrays` the memory that applications write to themselves, `runner` puts it together.
All of it may be missing (another system, no shared memory, an old host): then calls go by the connection as any
other.
"""
