"""Build a Windows ARM64 library from one C file that calls only the C runtime.

    small_dll.py ZIG SOURCE OUT_DLL [EXPORTS]

The library is linked without start-up code, so that the compiler does not have to build a C library first, which
takes a minute. EXPORTS: a module definition file, for functions that the source does not export.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

# Functions that the sources call.
OF_THE_C_RUNTIME = (
    "atan2", "cbrt", "copysign", "cos", "cosh", "exp", "hypot", "log", "memcmp", "memset", "sin", "sinh", "sqrt",
    "strncpy",
)  # fmt: skip


def make(zig: str, source: Path, out: Path, exports: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        definition, library, compiled = work / "ucrtbase.def", work / "ucrtbase.lib", work / "compiled.o"
        definition.write_text("\n".join(["LIBRARY ucrtbase.dll", "EXPORTS", *OF_THE_C_RUNTIME, ""]))
        flags = ("-O1", "-w", "-fno-builtin", "-fno-sanitize=all")
        more = (f"/def:{exports}",) if exports else ()
        steps: tuple[tuple[str | Path, ...], ...] = (
            ("dlltool", "-m", "arm64", "-d", definition, "-l", library),
            ("cc", "-target", "aarch64-windows-gnu", *flags, "-c", source, "-o", compiled),
            ("lld-link", "/dll", "/noentry", "/machine:arm64", compiled, library, f"/out:{out}", *more),
        )
        for step in steps:
            subprocess.run([zig, *map(str, step)], check=True)
    out.with_suffix(".lib").unlink(missing_ok=True)


if __name__ == "__main__":
    make(sys.argv[1], *map(Path, sys.argv[2:]))
