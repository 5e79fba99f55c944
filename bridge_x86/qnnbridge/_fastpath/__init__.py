"""The fast path: repeated calls with the same names, types and shapes.

`call` recognises such a call, `runner` makes it, `channel` carries it, `channel_pool` opens and closes channels,
`plans` and `memory` provide its memory, `arrays` the memory that applications write to themselves, `sharing`
settings and counters. Without it (another system, an old host) calls take the slow path. Sessions and the daemon
call it; it imports `_transport` and `_platform`.
"""
