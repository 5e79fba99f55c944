"""One host process and the connection to it.

`host_process` starts and ends the process, `channel` makes calls over its pipes, `open_requests` keeps the state of
every call. The supervisor and `_replay` call it; the fast path adds channels beside the connection. It imports the
protocol, `_platform` and `_launch.stderr`.
"""
