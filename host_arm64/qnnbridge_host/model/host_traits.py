"""What of a host decides whether a compiled model runs there. Immutable data; any thread.

Either a running host says it (`of_host`), or its interpreter is asked what is installed there (`of_interpreter`),
which starts Python but loads neither ONNX Runtime nor QNN.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from qnnbridge_host.model.chips import chip_of, chip_of_this_computer, simulated_chip
from qnnbridge_protocol.errors import HostStartFailed
from qnnbridge_protocol.hello import Hello
from qnnbridge_protocol.specs import ProviderSpec

if TYPE_CHECKING:
    from qnnbridge._host import HostInfo

QNN: Final = "QNNExecutionProvider"
ASK_TIMEOUT_S: Final = 60.0
"""A cold start of an emulated interpreter takes some seconds."""

QUESTION: Final = (
    "import json, sysconfig\n"
    "from qnnbridge_host.distributions import installed_versions\n"
    "print(json.dumps({'versions': installed_versions(), 'platform': sysconfig.get_platform()}))\n"
)
"""What a host's interpreter is asked: a program that reads the names of folders and loads nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostTraits:
    """versions as their packages say them; ``None``: not there, or not known.

    simulator: QNN computes on the CPU, for the chip `soc_model`. soc_model, htp_arch: of the NPU (73 for V73).
    backend: of QNN; nothing but htp is judged.
    """

    onnxruntime: str | None = None
    onnxruntime_qnn: str | None = None
    qnn_sdk: str | None = None
    simulator: bool | None = None
    soc_model: int | None = None
    htp_arch: int | None = None
    backend: str = "htp"

    @classmethod
    def of_host(cls, info: HostInfo, providers: Sequence[ProviderSpec] = ()) -> HostTraits:
        """Of a running host, for a session with these providers."""
        return cls._made(info.versions, info.simulator, _qnn_options(providers))

    @classmethod
    def of_hello(cls, peer: Hello, providers: Sequence[ProviderSpec] = ()) -> HostTraits:
        """Of a host that has said hello, before it has loaded anything; for a session with these providers."""
        simulator = {"ARM64": False, "x64": True, "x86_64": True}.get(peer.machine)
        return cls._made(peer.versions, simulator, _qnn_options(providers))

    @classmethod
    def of_interpreter(cls, python: str, options: Mapping[str, str] | None = None) -> HostTraits:
        """Of the host that this interpreter would run. Raises `HostStartFailed` if it does not answer."""
        from qnnbridge._launch.interpreter import host_environment

        try:
            done = subprocess.run(
                [python, "-I", "-X", "utf8", "-c", QUESTION],
                capture_output=True,
                timeout=ASK_TIMEOUT_S,
                env=host_environment({}),
                stdin=subprocess.DEVNULL,
                check=False,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
            told = json.loads(done.stdout or b"null")
            versions, platform = dict(told["versions"]), str(told["platform"])
        except (OSError, subprocess.TimeoutExpired) as error:
            raise HostStartFailed(f"The host's interpreter {python} does not start: {error}.") from None
        except (ValueError, TypeError, KeyError):
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise HostStartFailed(
                f"The host's interpreter {python} does not say what is installed there.",
                fix='Install the host\'s packages there: python -m pip install "qnnbridge[host]"',
                evidence=lines[-1:],
            ) from None
        return cls._made(versions, _is_simulator(platform), options or {})

    @classmethod
    def _made(cls, versions: Mapping[str, str], simulator: bool | None, options: Mapping[str, str]) -> HostTraits:
        release = versions.get("onnxruntime_qnn")
        if simulator:
            number = simulated_chip(options.get("soc_model"), options.get("htp_arch"))
            chip = chip_of(number) if number else None
        else:
            chip = chip_of_this_computer()
            number = chip.number if chip else None
        return cls(
            onnxruntime=versions.get("onnxruntime"),
            onnxruntime_qnn=release,
            qnn_sdk=versions.get("qnn_sdk") or _sdk_of(release),
            simulator=simulator,
            soc_model=number,
            htp_arch=chip.arch if chip else None,
            backend=_backend(options),
        )

    @property
    def words(self) -> str:
        """``QNN 2.51 on V73``, for messages that name what a compiled model needs instead."""
        from qnnbridge_host.model.versions_text import short_sdk

        sdk = f"QNN {short_sdk(self.qnn_sdk)}" if self.qnn_sdk else "a QNN of unknown version"
        if self.simulator and self.htp_arch:
            return f"{sdk} and simulates V{self.htp_arch} (soc_model={self.soc_model})"
        return f"{sdk} on V{self.htp_arch}" if self.htp_arch else sdk


def _qnn_options(providers: Sequence[ProviderSpec]) -> Mapping[str, str]:
    return next((provider.options for provider in providers if provider.name == QNN), {})


def _backend(options: Mapping[str, str]) -> str:
    library = os.path.basename(options.get("backend_path", "").replace("\\", "/")).removeprefix("lib")
    if library:
        name = library.partition(".")[0].lower()
        return name.removeprefix("qnn") if name.startswith("qnn") else name
    return options.get("backend_type", "htp")


def _is_simulator(platform: str) -> bool | None:
    """By the platform of an interpreter. Only Windows on ARM is sure to have the libraries for an NPU."""
    if platform == "win-arm64":
        return False
    return True if platform.endswith(("x86_64", "amd64")) else None


def _sdk_of(release: str | None) -> str | None:
    """Packages of the first generation do not say it."""
    if release is None:
        return None
    try:
        from qnnbridge_host.model.release_table import for_version

        return next((found.qnn_sdk for found in for_version(release) if found.qnn_sdk), None)
    except (ImportError, OSError, ValueError):
        return None
