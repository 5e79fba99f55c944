"""Calls of the operating system: processes, pipes, descriptors, shared memory, sockets, access lists.

Each subject is a module (`processes`, `door`, `private`, `sharing`) that chooses between two of the same
names, one for POSIX and one for Windows. `windows_*` are facts that only Windows has: their users ask the platform
first. Application, host and daemon call this package; of the others it imports the errors and the names of
processes. This module imports nothing: a host loads only what it needs before it introduces itself.
"""
