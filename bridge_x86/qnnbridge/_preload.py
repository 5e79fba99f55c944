"""What the runs of a session need, and its making does not: numpy, and what handles values.

Importing this loads it. That is done while the host makes the session, so that nobody waits for it.
"""

from __future__ import annotations
