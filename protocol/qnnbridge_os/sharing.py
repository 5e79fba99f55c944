"""The application, as its host sees it: its process, to wait for; its streams and memory, opened here. And crashes
without dialogs. One module per system, chosen here.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from qnnbridge_os._win32_sharing import (
        AVAILABLE,
        ParentHandle,
        drop,
        error_dialogs_off,
        map_memory,
        open_stream,
    )
else:
    from qnnbridge_os._posix_sharing import (
        AVAILABLE,
        ParentHandle,
        drop,
        error_dialogs_off,
        map_memory,
        open_stream,
    )

__all__ = ["AVAILABLE", "ParentHandle", "drop", "error_dialogs_off", "map_memory", "open_stream"]
