"""Make Windows libraries independent of the C runtime's complex mathematics, which Wine lacks.

    math_library.py ZIG OUT_DLL FOLDER...

In each ARM64 library below the folders that imports the C runtime's `api-ms-win-crt-math-l1-1-0.dll`, that name is
replaced by the name of OUT_DLL, which has the same length. OUT_DLL computes the functions of `math_library.c` and
forwards all others to the C runtime.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from small_dll import make

THEIRS = b"api-ms-win-crt-math-l1-1-0.dll"
OURS = b"lab-ms-win-crt-math-l1-1-0.dll"
SOURCE = Path(__file__).with_name("math_library.c")
ARM64 = 0xAA64
# Functions in `math_library.c`, for double, float and long double.
COMPLEX = (
    "creal", "cimag", "cabs", "carg", "cexp", "clog", "cpow", "csqrt", "ccos", "csin", "ccosh", "csinh", "ctan", "ctanh",
)  # fmt: skip
COMPUTED = {name + suffix for name in COMPLEX for suffix in ("", "f", "l")} | {"cbrtl", "copysignl"}


class Image:
    """Reader of the imports of a PE file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        header = self._number(0x3C, 4)
        self.machine = self._number(header + 4, 2)
        self._imports = self._number(header + 24 + 112 + 8, 4)
        first = header + 24 + self._number(header + 20, 2)
        sections = [first + 40 * index for index in range(self._number(header + 6, 2))]
        self._sections = [
            (
                self._number(at + 12, 4),
                max(self._number(at + 8, 4), self._number(at + 16, 4)),
                self._number(at + 20, 4),
            )
            for at in sections
        ]

    def imported(self, libraries: tuple[bytes, ...]) -> Iterator[str]:
        """Yield the names of the functions that the file imports from the libraries."""
        if not self._imports:
            return
        entry = self._place(self._imports)
        while self._number(entry + 12, 4):
            if self._text(self._number(entry + 12, 4)).lower() in libraries:
                thunk = self._place(self._number(entry, 4) or self._number(entry + 16, 4))
                while (value := self._number(thunk, 8)) != 0:
                    if not value >> 63:  # otherwise an ordinal
                        yield self._text(value + 2).decode()
                    thunk += 8
            entry += 20

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._data[at : at + size], "little")

    def _place(self, address: int) -> int:
        return next(address - start + raw for start, size, raw in self._sections if start <= address < start + size)

    def _text(self, address: int) -> bytes:
        at = self._place(address)
        return self._data[at : self._data.index(b"\0", at)]


def main(zig: str, out: Path, folders: list[str]) -> None:
    wanted: set[str] = set()
    for folder in map(Path, folders):
        for path in (p for suffix in ("*.pyd", "*.dll") for p in folder.rglob(suffix)):
            data = path.read_bytes()
            image = Image(data)
            names = set(image.imported((THEIRS, OURS))) if image.machine == ARM64 else set()
            if names:
                wanted |= names
                path.write_bytes(data.replace(THEIRS, OURS))
    if not wanted:
        sys.exit("no library below the folders uses the C runtime's mathematics")
    exports = out.with_suffix(".def")
    lines = [f"  {n}={'x_' + n if n in COMPUTED else 'ucrtbase.' + n}" for n in sorted(wanted)]
    exports.write_text("\n".join([f"LIBRARY {OURS.decode()}", "EXPORTS", *lines, ""]))
    make(zig, SOURCE, out, exports)
    exports.unlink()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
