"""How a program that `qnnbridge exec` runs ends where there is no host, or none can be started.

That is a matter of the machine, which the program cannot know of: its own lines are shown, down to the one that
needed the host, and then the error in words, without the frames of qnnbridge. Any other exception, and all of them
with ``QNNBRIDGE_DEBUG=1``, is shown as Python shows it. A hook that the program sets itself comes later and wins.
Main thread.
"""

from __future__ import annotations

import os
import sys
import traceback
from types import TracebackType
from typing import Final

from qnnbridge_protocol.errors import BreakerOpen, HostStartFailed

_NO_HOST: Final = (HostStartFailed, BreakerOpen)


def show_in_words() -> None:
    """From here on, in this process."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, _NO_HOST) or os.environ.get("QNNBRIDGE_DEBUG", "") not in ("", "0"):
            before(kind, error, trace)
            return
        frames = [frame for frame in traceback.extract_tb(trace) if not _is_ours(frame.filename)]
        if frames:
            print("Traceback (most recent call last):", file=sys.stderr)
            traceback.print_list(frames)
        print(f"Error: {error}", file=sys.stderr)

    sys.excepthook = hook


def _is_ours(file: str) -> bool:
    """Whether a frame is of qnnbridge, or of Python's own import on the way to it."""
    import qnnbridge
    import qnnbridge_protocol
    from qnnbridge.ort._import_hook import children

    folders = [os.path.dirname(str(package.__file__)) for package in (qnnbridge, qnnbridge_protocol)]
    folders.append(os.environ.get(children.VARIABLE, folders[0]))
    return file.startswith("<frozen ") or any(file.startswith(folder + os.sep) for folder in folders)
