"""Windows error numbers of a failed library load, as data.

They look like exit codes and are none: the process lives on and shows them inside a message (``[WinError 126]``).
14001 is also a QNN error number; `explain` gives both readings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class LoadError:
    name: str
    meaning: str
    advice: str


_MACHINE = (
    'Give the host an interpreter and packages of one machine type: python -c "import sysconfig; '
    "print(sysconfig.get_platform())\" names the interpreter's; install the packages with that interpreter: "
    'python -m pip install --force-reinstall "qnnbridge[host]".'
)
_ONE_SET = (
    "Use one set of libraries: remove QNN SDK folders from PATH, mind the old onnxruntime.dll in "
    "System32, reinstall onnxruntime-qnn."
)
_POLICY = "Reinstall the wheel; allow its libraries in Smart App Control, WDAC or the antivirus."

LOAD_ERRORS: Final[Mapping[int, LoadError]] = {
    2: LoadError("ERROR_FILE_NOT_FOUND", "the file is not there", "Check the path."),
    5: LoadError("ERROR_ACCESS_DENIED", "no permission for the file", "Check its rights and the antivirus log."),
    126: LoadError(
        "ERROR_MOD_NOT_FOUND",
        "the library, or one that it needs, was not found (often the Visual C++ runtime)",
        "Install the Visual C++ redistributable for the interpreter's machine; check backend_path.",
    ),
    127: LoadError(
        "ERROR_PROC_NOT_FOUND", "a library was found that lacks a function: versions are mixed", _ONE_SET
    ),
    182: LoadError("ERROR_INVALID_ORDINAL", "a library of another version was found first", _ONE_SET),
    193: LoadError("ERROR_BAD_EXE_FORMAT", "the file is for another machine type, or damaged", _MACHINE),
    216: LoadError("ERROR_EXE_MACHINE_TYPE_MISMATCH", "the program is for another machine type", _MACHINE),
    225: LoadError("ERROR_VIRUS_INFECTED", "the antivirus removed or blocked the file", _POLICY),
    577: LoadError("ERROR_INVALID_IMAGE_HASH", "the file's signature is missing or broken", _POLICY),
    998: LoadError("ERROR_NOACCESS", "the library touched invalid memory while it was loaded", _ONE_SET),
    1114: LoadError(
        "ERROR_DLL_INIT_FAILED",
        "the library's own start-up failed (driver missing, or loaded after a conflicting one)",
        "Import onnxruntime before other native packages; check the NPU driver.",
    ),
    1260: LoadError("ERROR_ACCESS_DISABLED_BY_POLICY", "a policy forbids the program", _POLICY),
    1455: LoadError(
        "ERROR_COMMITMENT_LIMIT",
        "the page file is too small for what the library maps",
        "Close programs; enlarge the page file.",
    ),
    4551: LoadError(
        "ERROR_SYSTEM_INTEGRITY_POLICY_VIOLATION", "Smart App Control or WDAC blocked the file", _POLICY
    ),
    14001: LoadError(
        "ERROR_SXS_CANT_GEN_ACTCTX",
        "the side-by-side configuration is wrong: an old Visual C++ runtime is missing",
        "Install the Visual C++ redistributable that the library names in its manifest.",
    ),
}
