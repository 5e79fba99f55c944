"""Calls of the operating system: processes, pipes, descriptors, shared memory, sockets, access lists.

Each subject is a module with the same names on POSIX and on Windows. `private`, `sharing` and `parent` have both
systems in them; `processes` and `door` choose between two modules. `windows_*` are facts that only Windows has:
their users ask the platform first. Application, host and daemon call this package; of the others it imports the
errors and the names of processes. This module imports nothing: a host loads only what it needs before it
introduces itself. PYTEST_DONT_REWRITE, see `qnnbridge_protocol`.
"""
