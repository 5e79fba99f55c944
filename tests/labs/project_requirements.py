"""Print the requirements of the project from `pyproject.toml`, one per line.

    project_requirements.py [--like PYTHON [--only-versions]] [EXTRA ...]

The labs install packages for a foreign platform, for which pip cannot install the project with its extras; so they
use this program instead of repeating a list. With ``--like`` the native packages get the versions of this
interpreter, so that a lab and the machine's own tests compare the same versions. Needs Python 3.11 (tomllib),
nothing else.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess

import tomllib

PYPROJECT = pathlib.Path(__file__).resolve().parents[2] / "pyproject.toml"
SAME_VERSION = ("onnxruntime", "onnxruntime-qnn", "onnx")
# Native packages of an extra that not every lab has.
OF_EXTRAS = {"genai": ("onnxruntime-genai",)}

ASK_VERSIONS = """
import importlib.metadata as m, sys
for name in sys.argv[1:]:
    try: print(name + "==" + m.version(name))
    except m.PackageNotFoundError: pass
"""


def requirements(extras: list[str]) -> list[str]:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return lines


def versions_of(python: str, extras: list[str]) -> list[str]:
    more = (name for extra in extras for name in OF_EXTRAS.get(extra, ()))
    command = [python, "-c", ASK_VERSIONS, *SAME_VERSION, *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--like")
    parser.add_argument("--only-versions", action="store_true")
    parser.add_argument("extras", nargs="*")
    arguments = parser.parse_args()
    lines = [] if arguments.only_versions else requirements(arguments.extras)
    print("\n".join(lines + (versions_of(arguments.like, arguments.extras) if arguments.like else [])))


if __name__ == "__main__":
    main()
