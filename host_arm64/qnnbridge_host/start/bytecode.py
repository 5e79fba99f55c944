"""Keeps a host that cannot write whole files from leaving cut ``.pyc`` files behind.

Python up to 3.13.0 takes a short write of one for success (cpython 126606). Every later import of that module, by
any program of the interpreter, then fails with "marshal data too short".
"""

import os
import sys

# More than any of our modules has.
ROOM_BYTES = 16 * 1024 * 1024


def spare() -> None:
    """Write none, if the size of files is limited or the disk is nearly full."""
    if sys.platform == "win32":
        return
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < ROOM_BYTES:
        sys.dont_write_bytecode = True
        return
    try:
        disk = os.statvfs(os.path.dirname(__file__))
    except OSError:
        return
    if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
        sys.dont_write_bytecode = True
