"""What the runs of a session need, and its making does not: numpy, and what handles values.

Importing this loads it. That is done while the host makes the session, so that nobody waits for it.
"""

from __future__ import annotations

import qnnbridge.feeds
import qnnbridge.outputs
import qnnbridge.repeated.lines
import qnnbridge.repeated.runner
import qnnbridge.repeated.user_arrays  # noqa: F401
