"""Cross-build CPython 3.11 for Windows on ARM64 from source trees of CPython, libffi and zlib, with zig's clang.

    build_cpython.py CPYTHON LIBFFI ZLIB ZIG OUT

OUT gets `python.exe`, `python311.dll` and `python3.dll`; OUT/objects keeps compiled files, so a second call
continues an interrupted one. The built-in modules are those of pythoncore plus `BUILT_IN`; modules that need
further libraries (ssl, sqlite3, lzma, bz2, decimal) are absent. Runs as many compilers as the CPU affinity allows.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TARGET = ("-target", "aarch64-windows-gnu")

# Extension modules that are built into python311.dll.
BUILT_IN = (
    "_socket", "select", "_overlapped", "_asyncio", "_multiprocessing", "_queue", "unicodedata", "_uuid", "_zoneinfo",
    "pyexpat", "_elementtree", "_ctypes",
)  # fmt: skip

# Places where the sources name Microsoft's compiler and mean Windows: file, text, replacement.
EDITS = (
    ("PC/pyconfig.h", '_Py_PASTE_VERSION("64 bit (ARM64)")', '"[Clang 64 bit (ARM64)]"'),
    ("PC/pyconfig.h", "#ifdef _MSC_VER\n\n/* We want", "#if 1\n\n/* We want"),
    ("PC/pyconfig.h", '#define COMPILER "[gcc]"\n', ""),
    ("PC/pyconfig.h", "#if _MSC_VER >= 1200", "#if 1"),
    ("PC/pyconfig.h", "#if defined(_MSC_VER)\n#if _MSC_VER > 1300", "#if 1\n#if 1"),
    ("PC/pyconfig.h", "#if defined(_MSC_VER) && _MSC_VER >= 1310", "#if 1"),
    ("Modules/posixmodule.c", "ifdef _MSC_VER", "if 1"),
    ("Modules/posixmodule.c", "#ifndef _MSC_VER", "#if 0"),
    ("Python/pylifecycle.c", "#if defined(_MSC_VER) && _MSC_VER >= 1400", "#if 1"),
    ("Include/internal/pycore_fileutils.h", "#if defined _MSC_VER && _MSC_VER >= 1900", "#if 1"),
    (
        "Include/internal/pycore_fileutils.h",
        "   extern _invalid_parameter_handler _Py_silent",
        "   _invalid_parameter_handler __cdecl"
        " _set_thread_local_invalid_parameter_handler(_invalid_parameter_handler);\n"
        "   extern _invalid_parameter_handler _Py_silent",
    ),
    ("PC/invalid_parameter_handler.c", "#ifdef _MSC_VER", "#if 1"),
    ("PC/invalid_parameter_handler.c", "#if _MSC_VER >= 1900", "#if 1"),
    ("Include/fileobject.h", "#ifdef _MSC_VER", "#if 1"),
    ("Modules/timemodule.c", "#ifdef _MSC_VER", "#if 1"),
    ("Modules/timemodule.c", "#if defined(_MSC_VER) ||", "#if 1 ||"),
    ("Modules/socketmodule.c", "#elif defined(_MSC_VER) && _MSC_VER>1201", "#elif 1"),
    ("Modules/socketmodule.c", "#ifdef _MSC_VER", "#if 1"),
    ("Modules/socketmodule.c", "issue29515 */\n#ifdef MS_WINDOWS", "issue29515 */\n#if 0"),
    ("Modules/selectmodule.c", "#if defined(_MSC_VER)", "#if 1"),
    ("Modules/_ctypes/callproc.c", "|| defined(__MINGW32__)", ""),
    # The start-up code of this C library converts some exceptions to signals, which Microsoft's does not: their
    # codes would never reach the parent.
    (
        "Programs/python.c",
        "    return Py_Main(argc, argv);",
        "    SetUnhandledExceptionFilter(NULL);\n    return Py_Main(argc, argv);",
    ),
    ("Programs/python.c", '#include "Python.h"', '#include "Python.h"\n#include <windows.h>'),
    (
        "PC/config.c",
        "/* -- ADDMODULE MARKER 1 -- */",
        "\n".join(f"extern PyObject* PyInit_{name}(void);" for name in BUILT_IN),
    ),
    (
        "PC/config.c",
        "/* -- ADDMODULE MARKER 2 -- */",
        "\n".join(f'    {{"{name}", PyInit_{name}}},' for name in BUILT_IN),
    ),
)

FLAGS = (
    *TARGET, "-O1", "-w", "-g0", "-std=gnu11", "-fno-sanitize=all", "-fwrapv", "-fno-strict-aliasing", "-mms-bitfields",
    "-fms-extensions", "-DNDEBUG", "-DWIN32", "-D_PID_T_", "-D_M_ARM64=1", '-DPY3_DLLNAME=L"python3"',
    '-DMS_DLL_ID="3.11"', "-D_Py_HAVE_ZLIB", "-DHAVE_STD_ATOMIC=1", "-DHAVE_BUILTIN_ATOMIC=1", "-DPy_ENABLE_SHARED",
    "-DUSING_MALLOC_CLOSURE_DOT_C=1", "-DHAVE_FFI_PREP_CIF_VAR=1", "-DHAVE_FFI_PREP_CLOSURE_LOC=1",
    "-DFFI_STATIC_BUILD", "-D_CRT_SECURE_NO_WARNINGS", "-DXML_STATIC",
)  # fmt: skip
FLAGS_OF_A_FILE = {
    "getpath.c": (
        "-DPREFIX=NULL", "-DEXEC_PREFIX=NULL", "-DVERSION=NULL", r'-DVPATH="..\\.."', '-DPYDEBUGEXT=""',
        '-DPLATLIBDIR="DLLs"',
    ),
    "sysmodule.c": (r'-DVPATH="..\\.."',),
    "pyexpat.c": ("-DPYEXPAT_EXPORTS",),
    # A library has a single DllMain.
    "callbacks.c": ("-DDllMain=unused_DllMain",),
}  # fmt: skip
LIBRARIES = (
    "version", "ws2_32", "api-ms-win-core-path-l1-1-0", "bcrypt", "iphlpapi", "rpcrt4", "ole32", "oleaut32", "advapi32",
    "shell32", "uuid", "mswsock", "shlwapi",
)  # fmt: skip

FFI_VALUES = {
    "VERSION": "3.4", "TARGET": "ARM_WIN64", "HAVE_LONG_DOUBLE": "0", "FFI_EXEC_TRAMPOLINE_TABLE": "0",
    "HAVE_LONG_DOUBLE_VARIANT": "0", "FFI_VERSION_STRING": "3.4", "FFI_VERSION_NUMBER": "30400",
}  # fmt: skip
FFI_CONFIG = """
#define STDC_HEADERS 1
#define HAVE_ALLOCA 1
#define HAVE_MEMCPY 1
#define HAVE_STDINT_H 1
#define SIZEOF_DOUBLE 8
#define SIZEOF_LONG_DOUBLE 8
#define SIZEOF_SIZE_T 8
#ifdef LIBFFI_ASM
#define FFI_HIDDEN(name)
#else
#define FFI_HIDDEN
#endif
"""
FFI_FILES = ("prep_cif.c", "types.c", "raw_api.c", "java_raw_api.c", "aarch64/ffi.c", "aarch64/sysv.S")
ZLIB_FILES = (
    "adler32", "compress", "crc32", "deflate", "infback", "inffast", "inflate", "inftrees", "trees", "uncompr", "zutil",
)  # fmt: skip
CLEAR_CACHE = """#include <windows.h>
void __clear_cache(void *begin, void *end) {
  FlushInstructionCache(GetCurrentProcess(), begin, (char *)end - (char *)begin);
}
"""


class Build:
    def __init__(self, cpython: Path, ffi: Path, zlib: Path, zig: Path, out: Path) -> None:
        self.cpython, self.ffi, self.zlib, self.zig, self.out = cpython, ffi, zlib, zig, out
        self.objects, self.include = out / "objects", out / "include"
        for folder in (self.objects, self.include):
            folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        self.freeze()
        self.edit()
        self.write_headers()
        compiled = self.compile([*self.sources(), self.clear_cache()])
        self.link(compiled)
        self.link_stable_abi()

    def freeze(self) -> None:
        """Write the frozen modules; byte code is the same on every system."""
        target = self.cpython / "Python/deepfreeze/deepfreeze.c"
        if target.exists():
            return
        project = (self.cpython / "PCbuild/_freeze_module.vcxproj").read_text()
        modules = re.findall(r'<None Include="\.\.\\([^"]+)">\s*<ModName>([^<]+)</ModName>', project)
        modules = [(file, name) for file, name in modules if name != "getpath"]
        for file, name in [*modules, (r"Modules\getpath.py", "getpath")]:
            header = f"Python/frozen_modules/{name}.h"
            command = [sys.executable, "Programs/_freeze_module.py", name, file.replace("\\", "/"), header]
            subprocess.run(command, cwd=self.cpython, check=True, stdout=subprocess.DEVNULL)
        names = [f"Python/frozen_modules/{name}.h:{name}" for _, name in modules]
        half = target.with_suffix(".half")
        subprocess.run(
            [sys.executable, "Tools/scripts/deepfreeze.py", *names, "-o", half], cwd=self.cpython, check=True
        )
        half.rename(target)

    def edit(self) -> None:
        for file in dict.fromkeys(name for name, _, _ in EDITS):
            path = self.cpython / file
            original = path.with_name(path.name + ".orig")
            if not original.exists():
                shutil.copy(path, original)
            text = original.read_text()
            for name, old, new in EDITS:
                if name == file:
                    if old not in text:
                        sys.exit(f"{file} is of another version: it has no {old!r}")
                    text = text.replace(old, new)
            if text != path.read_text():
                path.write_text(text)

    def write_headers(self) -> None:
        """Write libffi's generated headers, and Windows' headers with the names in the sources."""
        text = (self.ffi / "include/ffi.h.in").read_text()
        for name, value in FFI_VALUES.items():
            text = text.replace(f"@{name}@", value)
        (self.include / "ffi.h").write_text(text)
        (self.include / "fficonfig.h").write_text(FFI_CONFIG)
        shutil.copy(self.ffi / "src/aarch64/ffitarget.h", self.include)
        of_windows = {p.name for p in (self.zig.parent / "lib/libc/include/any-windows-any").glob("*.h")}
        for pattern in ("P*/*.[ch]", "Modules/**/*.[ch]", "Include/**/*.h"):
            for path in self.cpython.glob(pattern):
                for name in re.findall(r'#\s*include\s+[<"]([\w.]+)[>"]', path.read_text(errors="replace")):
                    if name not in of_windows and name.lower() in of_windows:
                        (self.include / name).write_text(f"#include <{name.lower()}>\n")

    def sources(self) -> Iterator[Path]:
        seen: set[Path] = set()
        for name in ("pythoncore", *BUILT_IN):
            project = (self.cpython / f"PCbuild/{name}.vcxproj").read_text()
            for file in re.findall(r'ClCompile Include="\.\.\\([^"]+)"', project):
                path = self.cpython / file.replace("\\", "/")
                if path not in seen:
                    seen.add(path)
                    yield path
        yield from (self.cpython / name for name in ("PC/dl_nt.c", "Programs/python.c"))
        yield from (self.zlib / f"{name}.c" for name in ZLIB_FILES)
        yield from (self.ffi / "src" / name for name in FFI_FILES)

    def clear_cache(self) -> Path:
        """Write libffi's function to flush the instruction cache; clang's runtime has it for other systems only."""
        path = self.objects / "clear_cache.c"
        path.write_text(CLEAR_CACHE)
        return path

    def compile(self, files: list[Path]) -> list[Path]:
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            results = list(pool.map(self.compile_one, dict.fromkeys(files)))
        said = [text for text in results if isinstance(text, str)]
        if said:
            print(*(text[:2000] for text in said[:5]), sep="\n", file=sys.stderr)
            sys.exit(f"{len(said)} of {len(files)} files cannot be compiled")
        return [path for path in results if isinstance(path, Path)]

    def compile_one(self, path: Path) -> Path | str:
        """Return the object file, or the compiler's message."""
        target = self.objects / ("_".join(path.parts[-3:]) + ".o")
        if target.exists() and target.stat().st_mtime > path.stat().st_mtime:
            return target
        of_python = self.cpython in path.parents
        folders = [self.include, self.zlib]
        if of_python:
            folders += [self.cpython / n for n in ("Include", "Include/internal", "PC", "Python", "Modules/expat")]
        else:
            folders += [self.ffi / "include", self.ffi / "src"]
        core = of_python and path.name != "python.c"
        half = target.with_suffix(".half")
        done = self.zig_cc(
            *FLAGS,
            *FLAGS_OF_A_FILE.get(path.name, ()),
            *(("-DPy_BUILD_CORE", "-DPy_BUILD_CORE_BUILTIN") if core else ()),
            *(f"-I{folder}" for folder in folders),
            *("-c", path, "-o", half),
        )
        if done.returncode != 0:
            return f"{path}\n{done.stderr}"
        half.rename(target)
        return target

    def zig_cc(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(self.zig), "cc", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def link(self, compiled: list[Path]) -> None:
        program = [path for path in compiled if path.name.endswith("Programs_python.c.o")]
        library = [path for path in compiled if path not in program]
        imports = self.objects / "libpython311.a"
        self.must_link(
            *("-shared", *library, "-o", self.out / "python311.dll", f"-Wl,--out-implib,{imports}"),
            *(f"-l{name}" for name in LIBRARIES),
        )
        self.must_link("-municode", *program, imports, "-o", self.out / "python.exe", "-Wl,--stack,2000000")

    def must_link(self, *arguments: str | Path) -> None:
        done = self.zig_cc(*TARGET, "-s", *arguments)
        if done.returncode != 0:
            sys.exit(f"the linker fails:\n{done.stderr[-3000:]}")

    def link_stable_abi(self) -> None:
        """Link python3.dll, which forwards each of its functions to python311.dll."""
        source = (self.cpython / "PC/python3dll.c").read_text()
        lines = ["LIBRARY python3.dll", "EXPORTS"]
        for kind, name in re.findall(r"EXPORT_(FUNC|DATA)\((\w+)\)", source):
            if name != "name":
                lines.append(f"  {name}=python311.{name}{' DATA' if kind == 'DATA' else ''}")
        definition, empty = self.objects / "python3.def", self.objects / "empty.o"
        definition.write_text("\n".join(lines) + "\n")
        # The linker cannot create a library from a definition file alone.
        if self.zig_cc(*TARGET, "-c", "-x", "c", "/dev/null", "-o", empty).returncode != 0:
            sys.exit("an empty file cannot be compiled")
        command = [
            *(self.zig, "lld-link", "/dll", empty, "/noentry", "/machine:arm64", f"/def:{definition}"),
            *(f"/out:{self.out / 'python3.dll'}", f"/implib:{self.objects / 'python3.lib'}"),
        ]
        subprocess.run(list(map(str, command)), check=True)


if __name__ == "__main__":
    Build(*(Path(argument).resolve() for argument in sys.argv[1:6])).run()
