"""Functions of the operating system: processes, pipes, descriptors, shared memory, sockets, access lists.

Each subject has a module with the same functions on POSIX and on Windows. `private`, `sharing` and `parent` contain
the code for both systems; `processes` and `daemon_endpoint` choose between two modules. The modules `windows_*`
exist only for Windows: their callers check the platform first. Application, host and daemon call this package; from
the other packages it imports only errors and process names. This module imports nothing, so that a host loads only
the modules that it needs before its HELLO. PYTEST_DONT_REWRITE: see `qnnbridge_protocol`.
"""
