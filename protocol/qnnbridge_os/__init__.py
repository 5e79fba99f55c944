"""Calls of the operating system: processes, pipes, descriptors, shared memory, sockets, access lists.

Each subject is a module with the same functions on POSIX and on Windows. `private`, `sharing` and `parent` contain
both systems; `processes` and `door` choose between two modules. `windows_*` are facts that exist only on Windows:
their users check the platform first. Application, host and daemon call this package; it imports only the errors and
the names of processes from the other packages. This module imports nothing: a host loads only what it needs before
it introduces itself. PYTEST_DONT_REWRITE, see `qnnbridge_protocol`.
"""
