"""`qnnbridge.pull`: downloads a model by name and returns its path.

The command `qnnbridge pull` does the work in a process of its own: the application loads none of its packages. Any
thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from qnnbridge_os.native import popen
from qnnbridge_protocol.errors import BridgeError, PullFailed, from_wire
from qnnbridge_protocol.process_names import is_frozen
from qnnbridge_protocol.shell import shell_word


def pull(
    name: str,
    *,
    revision: str | None = None,
    file: str | Sequence[str] = (),
    output: str | os.PathLike[str] | None = None,
    offline: bool = False,
    token: str | None = None,
    soc_model: str | int | None = None,
    host_python: str | None = None,
) -> str:
    """Download a model from a model hub, unless it is here already, and return its path.

    Args:
        name: ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` of a repository.
        revision: branch, tag or commit; default main.
        file: name or pattern of the model's file, several for a model of several parts.
        output: the folder to create; default one in ``QNNBRIDGE_MODELS_DIR``.
        offline: use no network, and find what was pulled before.
        token: overrides ``HF_TOKEN`` and the token of `hf auth login`.
        soc_model: chip that compiled models must fit; default the host's.
        host_python: interpreter of the host, as for `Host`.

    Raises:
        OptionError: the repository, revision or file does not exist, or no model in it can be used.
        PullFailed: the hub, the network or the disk refuses; ``details["reason"]``.
    """
    if is_frozen():
        raise PullFailed(
            "qnnbridge.pull() does not work in a frozen application.",
            cause="It has neither a Python interpreter nor the tools of qnnbridge.",
            fix="Pull the model when the application is built, and ship its folder.",
            details={"reason": "packages"},
        )
    options = {
        "--revision": revision,
        "--output": output,
        "--soc-model": soc_model,
        "--host-python": host_python,
    }
    command = [sys.executable, "-m", "qnnbridge_tools", "pull", "--json"]
    command += [f"{option}={value}" for option, value in options.items() if value is not None]
    command += [f"--file={one}" for one in ([file] if isinstance(file, str) else file)]
    command += ["--offline"] if offline else []
    # Not on the command line, which other processes can read.
    environment = os.environ if token is None else {**os.environ, "HF_TOKEN": token}
    with popen()(
        [*command, "--", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # progress goes to the application's stderr
        env=environment,
        # Windows opens a console window for a program of an application that has none.
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0) if sys.stderr is None else 0,
    ) as process:
        try:
            printed = process.communicate()[0]
        except BaseException:
            process.kill()
            raise
    try:
        answer = json.loads(printed)
        if "error" in answer:
            raise from_wire(answer["error"])
        return str(answer["path"])
    except (ValueError, LookupError, TypeError) as error:
        if isinstance(error, BridgeError):  # some are a ValueError, too
            raise
        raise PullFailed(
            f"The process that pulls {name} ended without an answer (exit code {process.returncode}).",
            fix=f"Run it in a terminal to see why: qnnbridge pull {shell_word(name)}",
            details={"reason": "packages"},
        ) from None
