"""The options of the QNN execution provider, as data.

QNN ignores an option that it does not know, and most values that it cannot use, without an error: a misspelt
option silently computes with other settings. So names and values are checked here, against this table;
`qnn_checks` does the checking. Constant data; any thread.

Sources: the option names inside the libraries of onnxruntime-qnn 1.20.0, 1.22.0, 1.23.2, 1.24.1 and 2.7.0, and the
behaviour of 2.7.0 on the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from qnnbridge_protocol.records import NamedTuple

PROVIDER = "QNNExecutionProvider"

Kind = Literal["switch", "number", "choice", "library", "file", "text", "soc", "packages"]

PERFORMANCE_MODES = (
    "default",
    "burst",
    "balanced",
    "high_performance",
    "high_power_saver",
    "low_balanced",
    "low_power_saver",
    "power_saver",
    "extreme_power_saver",
    "sustained_high_performance",
)
BACKEND_TYPES = ("htp", "gpu", "cpu", "saver", "ir", "genie")
PRIORITIES = ("normal", "low", "normal_low", "normal_high", "high", "high_plus", "critical", "critical_plus")


class Option(NamedTuple):
    """One option.

    kind: the meaning of its text. ``switch`` is exactly "0" or "1"; ``library`` is a file that must exist, or the
        name of one beside the provider; ``file`` must exist; ``text`` is anything.
    choices: allowed values of a ``choice`` (case counts) or a ``number``.
    low, high: range of a ``number``.
    since: first release of onnxruntime-qnn that reads it; earlier ones ignore it silently.
    """

    name: str
    kind: Kind
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 2**31 - 1
    since: tuple[int, int] = (1, 20)


def _switch(name: str, since: tuple[int, int] = (1, 20)) -> Option:
    return Option(name, "switch", since=since)


def _number(name: str, low: int = 0, high: int = 2**31 - 1, since: tuple[int, int] = (1, 20)) -> Option:
    return Option(name, "number", low=low, high=high, since=since)


_TABLE = (
    Option("backend_path", "library"),
    Option("backend_type", "choice", BACKEND_TYPES, since=(1, 22)),
    _number("device_id"),
    Option("soc_model", "soc"),
    Option("htp_arch", "number", ("0", "68", "69", "73", "75", "79", "81")),
    _number("vtcm_mb"),
    Option("htp_performance_mode", "choice", PERFORMANCE_MODES),
    _number("rpc_control_latency"),
    Option("qnn_context_priority", "choice", PRIORITIES),
    _number("htp_graph_finalization_optimization_mode", 0, 3),
    _switch("enable_htp_fp16_precision"),
    _switch("enable_htp_fp16_clamp_overflow", (2, 5)),
    _switch("htp_bf16_enable", (1, 24)),
    _switch("offload_graph_io_quantization"),
    _switch("enable_htp_spill_fill_buffer", (1, 22)),
    _switch("enable_vtcm_backup_buffer_sharing", (1, 23)),
    Option("htp_share_resource_optimization", "number", ("1",), since=(2, 0)),
    _switch("enable_htp_shared_memory_allocator", (1, 22)),
    _switch("enable_dx12_shared_memory_allocator", (2, 4)),
    _switch("extended_udma", (2, 1)),
    _switch("enable_block_quant_weight_optimization", (2, 5)),
    _switch("enable_htp_monolithic_lstm", (2, 6)),
    _switch("enable_htp_graph_splitting", (2, 6)),
    _number("htp_graph_splitting_num_prepare_threads", since=(2, 7)),
    _number("htp_reused_io_limit_mb", since=(2, 7)),
    _number("num_graph_prepare_threads", since=(2, 0)),
    _switch("enable_htp_prepare_only", (2, 3)),
    _switch("enable_htp_prepare_and_load", (2, 7)),
    _switch("disable_file_mapped_weights", (1, 24)),
    Option("profiling_level", "choice", ("off", "basic", "detailed", "optrace")),
    Option("profiling_file_path", "text"),
    Option("op_packages", "packages", since=(1, 23)),
    Option("op_affinity", "file", since=(2, 7)),
    _switch("skip_qnn_version_check", (1, 24)),
    _switch("skip_backend_op_validation", (2, 7)),
    Option("qnn_saver_path", "library"),
    Option("qnn_ir_backend_path", "library", since=(1, 23)),
    _switch("dump_qnn_ir_dlc", (1, 23)),
    Option("dump_qnn_ir_dlc_dir", "text", since=(1, 23)),
    _switch("dump_json_qnn_graph", (1, 22)),
    Option("json_qnn_graph_dir", "text", since=(1, 22)),
    _switch("enable_framework_op_trace", (2, 4)),
    Option("framework_op_trace_dir", "text", since=(2, 4)),
    _switch("dump_qnn_ep_input_graph", (2, 5)),
    Option("dump_qnn_ep_input_graph_dir", "text", since=(2, 5)),
    Option("genie_log_level", "text", since=(2, 0)),
)

PROVIDER_OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}

RUN_OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("qnn.htp_perf_mode", "choice", PERFORMANCE_MODES),
        Option("qnn.htp_perf_mode_post_run", "choice", PERFORMANCE_MODES),
        # Anything but a number aborts the process inside the provider (std::stoul).
        _number("qnn.rpc_control_latency"),
        Option("qnn.lora_config", "file", since=(1, 22)),
    )
}

DYNAMIC_OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("ep.dynamic.workload_type", "choice", ("Default", "Efficient")),
        Option("ep.dynamic.qnn_htp_performance_mode", "choice", PERFORMANCE_MODES, since=(1, 23)),
        # Anything but a number aborts the process inside the provider.
        _number("kvcache_rewind", since=(2, 0)),
    )
}

# Session keys with this prefix are provider options by another name.
SESSION_PREFIX = "ep.qnnexecutionprovider."

# Names that documentation gives and QNN ignores -> the name that works.
WRONG_NAMES: Mapping[str, str] = {
    "qnn.perf_mode": "qnn.htp_perf_mode",
    "ep_select_backend_path": "backend_path",
}

# Backend type -> its library's name, without the platform's prefix and suffix.
BACKEND_LIBRARIES: Mapping[str, str] = {
    "htp": "QnnHtp",
    "gpu": "QnnGpu",
    "cpu": "QnnCpu",
    "saver": "QnnSaver",
    "ir": "QnnIr",
    "genie": "Genie",
}
