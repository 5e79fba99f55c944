"""The original model on the CPU, in a worker: what a computation on QNN is compared with.

A worker, because a model may kill the process that runs it, and because its memory is free afterwards. One thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from qnnbridge_host.create.compiler import call_with_model, without_compiling
from qnnbridge_host.create.jobs import CompilerInput
from qnnbridge_host.create.worker import Worker
from qnnbridge_protocol.specs import CPU, ProviderSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.values import Decoder, Encoder


class WorkerSession:
    """A session in the worker."""

    def __init__(
        self, worker: Worker, spec: SessionSpec, initializers: Sequence[Any] = (), data: bytes | None = None
    ) -> None:
        self._worker = worker
        reply = call_with_model(worker, {"op": "worker.create", "spec": spec.to_wire()}, initializers, data).header
        self._number = reply["session"]
        self.info = SessionInfo.from_wire(reply["info"])

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        encoder = Encoder()
        inputs = [[name, encoder.add(value)] for name, value in feeds.items()]
        header = {"op": "session.run", "session": self._number, "outputs": outputs, "inputs": inputs}
        frame = self._worker.call(header, tuple(encoder.buffers))
        decoder = Decoder(frame.buffers)
        outputs = [decoder.value(item) for item in frame.header["outputs"]]
        decoder.finish()
        return outputs


def open_original(worker: Worker, job: CompilerInput) -> WorkerSession:
    """The original model on the CPU alone: the reference."""
    entries = without_compiling(job.spec.config_entries)
    spec = dataclasses.replace(
        job.spec,
        providers=(ProviderSpec(CPU),),
        config_entries={
            key: text
            for key, text in entries.items()
            if not key.startswith("ep.qnn") and key != "session.disable_cpu_ep_fallback"
        },
    )
    return WorkerSession(worker, spec, job.initializers, job.source.data)
