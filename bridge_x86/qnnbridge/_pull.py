"""`qnnbridge.pull`: download a model by name and return its path.

A child process runs the command `qnnbridge pull`, so the application does not load the packages of that command.
Any thread may call the function.
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
from qnnbridge_protocol.shell import model_command


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
    """Download a model from a model hub, unless it was downloaded before, and return its path.

    Args:
        name: ``OWNER/NAME`` or ``OWNER/NAME@REVISION`` of a repository.
        revision: branch, tag or commit; default main.
        file: name or pattern of the model's file, or a list of names for a model with several files.
        output: the folder to create; default: a folder in ``QNNBRIDGE_MODELS_DIR``.
        offline: do not use the network; return a model that was downloaded before.
        token: overrides ``HF_TOKEN`` and the token of `hf auth login`.
        soc_model: the chip that compiled models must support; default: the host's.
        host_python: interpreter of the host, as for `Host`.

    Raises:
        OptionError: the repository, revision or file does not exist, or no model in it can be used.
        PullFailed: an error of the hub, the network or the file system; see ``details["reason"]``.
    """
    if is_frozen():
        raise PullFailed(
            "qnnbridge.pull() does not work in a frozen application.",
            cause="A frozen application has neither a Python interpreter nor the tools of qnnbridge.",
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
    # Without PYTHONSAFEPATH, files such as json.py in the current folder would replace Python's own modules.
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    # Pass the token in an environment variable, because other users can read a command line.
    environment |= {} if token is None else {"HF_TOKEN": token}
    with popen()(
        [*command, "--", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,  # not stderr, to which the child writes its progress
        env=environment,
        # Without this flag, Windows would open a console window if the application has none.
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
        if isinstance(error, BridgeError):  # from `from_wire`; some BridgeErrors are also ValueErrors
            raise
        raise PullFailed(
            f"The process that pulls {name} ended without an answer (exit code {process.returncode}).",
            fix=f"To see the error, run the command in a terminal: {model_command('pull', name)}",
            details={"reason": "packages"},
        ) from None
