"""Explains faults: exit codes, lines of ONNX Runtime's log, deaths of the host, crash reports.

Pure functions over tables, apart from `reports` (files); no process is started here. `_supervision`, the transport
and the tools call it. It imports the protocol, `qnnbridge_os` and `_launch.stderr`. It is needed only when
something fails, and the tables take 20 ms to import, so callers import it then.
"""
