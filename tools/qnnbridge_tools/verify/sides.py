"""The two sides that are compared: the CPU provider in this process, QNN on a host.

Owns the folder of the models that are tried, and the host; a context manager. One thread.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from qnnbridge_tools.model_work import cpu
from qnnbridge_tools.model_work.files import link_files

if TYPE_CHECKING:
    from qnnbridge import InferenceSession


class Sides:
    """external_files: of the model's weights, beside `source`. options: of the QNN provider."""

    def __init__(
        self,
        source: Path,
        external_files: Iterable[str],
        options: Mapping[str, str],
        host_python: str | None,
        timeout_s: float | None,
    ) -> None:
        from qnnbridge import Host

        self._temporary = tempfile.TemporaryDirectory(prefix="qnnbridge-verify-")
        self._folder = Path(self._temporary.name)
        link_files(source.parent, external_files, self._folder)
        self._options = {"offload_graph_io_quantization": "0", **options}
        self._timeout_s = timeout_s
        self._count = 0
        self.host = Host(python=host_python)

    def __enter__(self) -> Sides:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.host.close()
        self._temporary.cleanup()

    def save(self, model: Any) -> Path:
        """Where both sides find it."""
        self._count += 1
        path = self._folder / f"model-{self._count}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def on_cpu(self, model: Path) -> Any:
        options = cpu.quiet_options()
        options.log_severity_level = 4  # an input that the CPU refuses is a finding, not a log line
        return cpu.open_session(model, model.name, options)

    def on_qnn(self, model: Path) -> InferenceSession:
        """Nodes that QNN does not take run on the host's CPU; the placement tells."""
        from qnnbridge import CpuFallbackWarning, InferenceSession

        log = logging.getLogger("qnnbridge")
        before, log.disabled = log.disabled, True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CpuFallbackWarning)
                return InferenceSession(
                    str(model),
                    providers=["QNNExecutionProvider"],
                    provider_options=[self._options],
                    host=self.host,
                    fallback="cpu",
                    timeout=self._timeout_s,
                    cache=False,
                )
        finally:
            log.disabled = before

    def run_cpu(self, session: Any, feeds: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        return cpu.run(session, feeds, "the model", names)

    def run_qnn(self, session: InferenceSession, feeds: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
        return list(session.run(list(names), dict(feeds)))
