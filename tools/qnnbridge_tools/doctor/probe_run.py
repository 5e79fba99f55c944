"""The live probe's own process: ``python -m qnnbridge_tools.doctor.probe_run``, an order on its standard input.

Everything that may hang or die happens below this process, and its state folder is a temporary one: what a probe
kills makes no crash report and puts no model in quarantine. It prints one line of JSON when a stage begins and
one with the result.
"""

from __future__ import annotations

import importlib.resources
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

STAGE_OF_PHASE: Final = {
    "starting": "start",
    "importing": "import",
    "registering": "register",
    "creating": "create",
    "compiling": "create",
    "running": "run",
}
PROBE_MODEL: Final = "probe.onnx"
# The NPU computes with 16 bits; the right numbers are small multiples of 1/8.
TOLERANCE: Final = 0.05


class ProbeLog:
    """The stages of the probe, for the parent process."""

    def __init__(self) -> None:
        self.stages: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {}
        self._begun = time.perf_counter()

    def begin(self, stage: str) -> None:
        self.end()
        self.stages.append({"name": stage, "seconds": 0.0})
        self._begun = time.perf_counter()
        _say({"stage": stage})

    def end(self) -> None:
        if self.stages:
            self.stages[-1]["seconds"] = round(time.perf_counter() - self._begun, 3)

    @property
    def stage(self) -> str:
        return str(self.stages[-1]["name"]) if self.stages else "start"


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def main() -> int:
    order = json.loads(sys.stdin.readline())
    run = ProbeLog()
    try:
        _probe(order, run)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        run.result |= _failed(error, run.stage)
    run.end()
    _say({"result": {**run.result, "stages": run.stages}})
    return 0


def _probe(order: dict[str, Any], run: ProbeLog) -> None:
    from qnnbridge import Host

    run.begin("start")
    timeout_s = float(order["timeout_s"])
    with Host(python=order["host_python"], start_timeout=timeout_s) as host:
        host.start(timeout_s)
        run.begin("import")
        info = host.info
        run.result |= {
            "simulator": info.simulator,
            "versions": {str(name): str(version) for name, version in info.versions.items()},
            "devices": [str(device.get("device_type", "")) for device in info.devices],
        }
        if order.get("model"):
            _compute(host, str(order["model"]), order, run, _random_feeds(order), None)
        else:
            with importlib.resources.as_file(_asset()) as model:
                _compute(host, str(model), order, run, _probe_feeds, _right_numbers())


def _asset() -> Any:
    return importlib.resources.files("qnnbridge_tools.doctor").joinpath("assets").joinpath(PROBE_MODEL)


def _compute(
    host: Any, model: str, order: dict[str, Any], run: ProbeLog, feeds: Callable[[Any], dict[str, Any]], right: Any
) -> None:
    import numpy as np

    from qnnbridge import InferenceSession

    run.begin("create")
    timeout_s = float(order["timeout_s"])
    # No repetition: one death shows it.
    with InferenceSession(model, _options(order), host=host, timeout=timeout_s, retry=0) as session:
        placement = session.placement
        run.result |= {"qnn_nodes": placement.qnn_nodes, "cpu_nodes": placement.cpu_nodes}
        run.result["simulator"] = placement.simulator
        run.begin("run")
        outputs = session.run(None, feeds(session))
        if right is None:
            return
        run.begin("numbers")
        difference = float(np.max(np.abs(np.asarray(outputs[0], np.float64) - right)))
        run.result["difference"] = difference
        # Written so that NaN fails, too.
        if not difference <= TOLERANCE:
            run.result |= {
                "failed": "numbers",
                "message": f"the largest difference from the right numbers is {difference:.3g}",
            }


def _options(order: dict[str, Any]) -> Any:
    if not order.get("dimensions"):
        return None
    from qnnbridge import SessionOptions
    from qnnbridge_tools.arguments import read_dimensions

    options = SessionOptions()
    for name, size in read_dimensions(order["dimensions"]).by_name.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def _probe_feeds(_session: Any) -> dict[str, Any]:
    import numpy as np

    return {"x": np.arange(-8, 8, dtype=np.float32).reshape(2, 8) / 8}


def weights() -> Any:
    import numpy as np

    # Multiples of 1/8 between -1 and 7/8: 16 bits hold them, and the sums of their products, exactly.
    return ((np.arange(64) * 7 % 16 - 8) / 8).reshape(8, 8)


def bias() -> Any:
    import numpy as np

    return (np.arange(8) % 3 - 1) / 2


def _right_numbers() -> Any:
    """relu(x @ w + b), which `scripts/makers/probe_model.py` makes a model of."""
    import numpy as np

    x = _probe_feeds(None)["x"].astype(np.float64)
    return np.maximum(x @ weights() + bias(), 0)


def _random_feeds(order: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    def make(session: Any) -> dict[str, Any]:
        from qnnbridge_tools import feeds
        from qnnbridge_tools.arguments import read_dimensions

        given = feeds.complete(list(session.get_inputs()), [], read_dimensions(order.get("dimensions", ())), seed=0)
        return {feed.name: feed.value for feed in given}

    return make


def _failed(error: Exception, stage: str) -> dict[str, Any]:
    """An error as the result. A death names its own phase; the engine's own complaints name what is missing."""
    details = getattr(error, "details", None) or {}
    kind = type(error).__name__
    exit_record = details.get("exit") if isinstance(details.get("exit"), dict) else None
    failed = (
        # The death of a process names its phase; any other error belongs to the stage that was begun here.
        STAGE_OF_PHASE.get(str(details.get("phase", "")), stage) if exit_record or kind == "HostCrashed" else stage
    )
    if kind == "ProviderUnavailable":
        failed = (
            # One class for both stages: only its text says whether the registering failed or no device was listed.
            "devices" if "device" in str(error).lower() and "register" not in str(error).lower() else "register"
        )
    elif kind in ("DeadlineExceeded", "HostHung"):
        failed = "timeout"
    return {
        "failed": failed,
        "error": kind,
        "message": str(getattr(error, "message", "") or error),
        "cause": getattr(error, "cause", None) or "",
        "fix": getattr(error, "fix", None) or "",
        # The report is in the temporary state folder, which is gone before anybody can read it.
        "evidence": [
            str(line) for line in getattr(error, "evidence", ()) if not str(line).startswith("crash report:")
        ],
        "exit_code": exit_record.get("number") if exit_record else None,
    }


if __name__ == "__main__":
    sys.exit(main())
