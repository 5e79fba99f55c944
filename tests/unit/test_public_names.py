"""The public names of `qnnbridge`: complete, importable one by one, and loaded only when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import qnnbridge


@pytest.mark.parametrize("name", qnnbridge.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(qnnbridge, name) is not None


def test_the_list_of_public_names_is_complete() -> None:
    assert set(qnnbridge.__all__) == {*qnnbridge._HOMES, "errors", "__version__"}
    assert set(qnnbridge.__all__) <= set(dir(qnnbridge))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="InferenceSesion"):
        _ = qnnbridge.InferenceSesion  # type: ignore[attr-defined]


@pytest.mark.process
def test_importing_the_package_loads_nothing_else() -> None:
    script = "import sys; import qnnbridge; print(*sorted(m for m in sys.modules if m.partition('.')[0] in "
    script += "('numpy', 'psutil', 'msgpack', 'rich', 'typer', 'onnx', 'onnxruntime', 'qnnbridge')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["qnnbridge"]
