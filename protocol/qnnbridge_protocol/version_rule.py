"""Which releases of qnnbridge may share a daemon: those at most one minor version apart. Pure functions.

A private host is installed together with its application, as far as anybody cares. A daemon serves applications
with environments of their own, each upgraded on a day of its own, so the rule has to be simple, and both sides
apply.
"""

from __future__ import annotations

from qnnbridge_protocol.errors import VersionMismatch

MINORS_APART = 1


def check_releases(client: str, daemon: str, daemon_python: str = "") -> None:
    """Raises `VersionMismatch` naming both releases and what to upgrade.

    What is no release number is let through: the range of protocol versions decides then.
    """
    ours, theirs = _release(client), _release(daemon)
    if ours is None or theirs is None:
        return
    if ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= MINORS_APART:
        return
    upgrade = "pip install --upgrade qnnbridge"
    if ours < theirs:
        older, fix = "application side", f"Upgrade the application side: python -m {upgrade} (with its own Python)."
    else:
        older = "daemon"
        python = daemon_python or "python"
        fix = f"Upgrade the daemon: {python} -m {upgrade}   Then: qnnbridge host restart --daemon"
    raise VersionMismatch(
        f"The application side has qnnbridge {client}, the daemon has qnnbridge {daemon}: they are more than one "
        "minor version apart.",
        fix=fix,
        details={"client": client, "daemon": daemon, "older": older},
    )


def _release(version: str) -> tuple[int, int] | None:
    # Without `re`: the host imports this before it says HELLO.
    major, _, rest = version.partition(".")
    minor = rest[: len(rest) - len(rest.lstrip("0123456789"))]  # 0 of 0rc1
    return (int(major), int(minor)) if major.isdecimal() and minor else None
