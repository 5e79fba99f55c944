"""The engine's advice if ONNX Runtime or a provider is missing. Needs no simulator."""

from __future__ import annotations

import sys

import pytest

from qnnbridge_host.engine import Installed, _no_runtime, providers
from qnnbridge_protocol.errors import ProviderUnavailable
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

QNN, CPU, AZURE = "QNNExecutionProvider", "CPUExecutionProvider", "AzureExecutionProvider"
ERROR = ImportError("No module named 'onnxruntime'")


class Qnn:
    """Return facts of a host that can use QNN."""

    simulator = True
    library_folder = None
    version = (2, 7, 0)

    def require(self) -> None:
        pass


def refusal(name: str, available: tuple[str, ...] = (QNN, AZURE, CPU), qnn: object = None) -> ProviderUnavailable:
    spec = SessionSpec("m.onnx", (ProviderSpec(name),))
    with pytest.raises(ProviderUnavailable) as caught:
        providers.choose(spec, available, qnn or Qnn(), records=True)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("python", [(3, 9, 18), (3, 10, 14)])
@pytest.mark.parametrize("found", [Installed({}), Installed({}, onnxruntime="1.20.0")])
def test_a_python_that_is_too_old_is_named_as_the_reason(python: tuple[int, ...], found: Installed) -> None:
    """For this Python the extra installs no ONNX Runtime, so installing it again would change nothing."""
    error = _no_runtime(found, ERROR, python)
    assert "Python 3.11 or newer" in (error.fix or "")
    assert "no wheel for older versions" in (error.fix or "")
    assert error.details["python"] == ".".join(map(str, python))


def test_the_advice_for_a_python_that_is_new_enough_names_what_to_install() -> None:
    assert install_command("host", python=sys.executable) in (
        _no_runtime(Installed({}), ERROR, (3, 11, 0)).fix or ""
    )
    broken = _no_runtime(Installed({}, onnxruntime="1.31.1"), ERROR, (3, 11, 0)).fix or ""
    assert "Reinstall onnxruntime" in broken
    assert "3.11" not in broken


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        *(
            (name, QNN)
            for name in ("QNN", "qnn", "QnnExecutionProvider", "QNNProvider", "QNNEP", "QNNExecutionProvide")
        ),
        *((name, CPU) for name in ("CPU", "cpu", "CPUProvider", "CPUExecutionprovider")),
    ],
)
def test_the_error_for_a_misspelt_provider_suggests_the_right_name(asked: str, meant: str) -> None:
    assert f"Did you mean {meant!r}?" in (refusal(asked).fix or "")


@pytest.mark.parametrize("asked", ["CUDAExecutionProvider", "", "x"])
def test_a_provider_that_is_not_installed_is_not_mistaken_for_another(asked: str) -> None:
    fix = refusal(asked).fix or ""
    assert "Did you mean" not in fix
    assert f"{QNN}, {CPU}" in fix


def test_the_azure_provider_of_every_onnxruntime_is_not_suggested() -> None:
    error = refusal("Azure")
    assert AZURE not in (error.fix or "")
    assert error.details["available"] == [QNN, CPU]


def test_qnn_is_not_suggested_if_it_cannot_be_used() -> None:
    error = refusal("QNN", qnn=providers.NoQnn(ProviderUnavailable("broken")))
    assert QNN not in (error.fix or "")
