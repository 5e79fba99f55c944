"""Whether a compiled model's files are whole, as far as that is seen without loading them. Pure; any thread."""

from __future__ import annotations

import os

from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.errors import BridgeError, CompileFailed


def check_whole(folder: str, model: str, blob: str | None) -> None:
    """Raises `CompileFailed` unless the .onnx can be read to its end and has its context binary.

    blob: the file that it must name; ``None``: the context binary must be inside.
    """
    path = os.path.join(folder, model)
    try:
        scan = scan_model(path)
    except BridgeError as error:
        raise _broken(f"{model} cannot be read to its end.", error.message) from None
    owners = [node for node in scan.ep_contexts if node.owns_blob]
    if not owners or not scan.opsets:
        raise _broken(f"{model} has no compiled part.", "")
    for node in owners:
        if blob is None:
            if not node.embedded:
                raise _broken(f"{model} has no context binary inside.", "")
        elif node.embeds or node.cache_path != blob:
            raise _broken(f"{model} does not name {blob} as its context binary.", f"It names {node.cache_path!r}.")
    if blob is not None and not _size(os.path.join(folder, blob)):
        raise _broken(f"The context binary {blob} is missing or empty.", "")


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _broken(what: str, why: str) -> CompileFailed:
    return CompileFailed(
        f"The compiler left no whole result: {what}",
        cause=why or None,
        fix="Compile again. If it happens again, look at the free space of the disk and at the host's log.",
    )
