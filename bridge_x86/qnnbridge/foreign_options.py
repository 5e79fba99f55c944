"""Options objects of a real onnxruntime, where the application has one: read, and turned into ours.

Nothing is imported: an object of onnxruntime can only exist if the application imported it. ONNX Runtime offers no
way to list configuration entries, so the keys that it knows (`SESSION_KEYS`, `RUN_KEYS`) are asked for one by one.
What cannot be read at all is either refused (providers) or announced with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

from qnnbridge.option_fields import HasFields
from qnnbridge.run_options import RunOptions
from qnnbridge.session_options import SessionOptions
from qnnbridge_protocol import errors

O = TypeVar("O", bound=HasFields)  # noqa: E741 - options

SESSION_KEYS = (
    "ep.context_embed_mode",
    "ep.context_enable",
    "ep.context_file_path",
    "ep.context_model_external_initializers_file_name",
    "ep.context_node_name_prefix",
    "ep.enable_weightless",
    "ep.share_ep_contexts",
    "ep.stop_share_ep_contexts",
    "mlas.disable_kleidiai",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
    "mlas.kleidiai.conv_igemm_max_work",
    "mlas.qnbit.force_fp32",
    "mlas.use_lut_gemm",
    "optimization.constant_folding_max_output_size_in_bytes",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.enable_gelu_approximation",
    "optimization.enable_memory_probe_recompute_config",
    "optimization.memory_optimizer_config",
    "optimization.minimal_build_optimizations",
    "session.allow_released_opsets_only",
    "session.collect_node_memory_stats_to_file",
    "session.debug_layout_transformation",
    "session.disable_aot_function_inlining",
    "session.disable_cpu_ep_fallback",
    "session.disable_double_qdq_remover",
    "session.disable_model_compile",
    "session.disable_prepacking",
    "session.disable_qdq_constant_folding",
    "session.disable_quant_qdq",
    "session.dynamic_block_base",
    "session.enable_dq_matmulnbits_fusion",
    "session.enable_quant_qdq_cleanup",
    "session.fail_on_suboptimal_compiled_model",
    "session.force_spinning_stop",
    "session.function_expansion_byte_limit",
    "session.function_expansion_node_limit",
    "session.graph_optimizations_loop_level",
    "session.inter_op.allow_spinning",
    "session.inter_op.spin_backoff_max",
    "session.inter_op.spin_duration_us",
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_backoff_max",
    "session.intra_op.spin_duration_us",
    "session.intra_op_thread_affinities",
    "session.layer_assignment_settings",
    "session.load_model_format",
    "session.max_shape_override",
    "session.model_external_initializers_file_folder_path",
    "session.name_based_layer_assignment",
    "session.node_partition_config_file",
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
    "session.prepack.enable_parallel",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.qdqisint8allowed",
    "session.record_ep_graph_assignment_info",
    "session.save_external_prepacked_constant_initializers",
    "session.save_model_format",
    "session.set_denormal_as_zero",
    "session.strict_shape_type_inference",
    "session.use_device_allocator_for_initializers",
    "session.use_env_allocators",
    "session.use_ort_model_bytes_directly",
    "session.use_ort_model_bytes_for_initializers",
    "session.x64quantprecision",
)
"""Session configuration keys of ONNX Runtime 1.20 to 1.31."""

RUN_KEYS = (
    "disable_synchronize_execution_providers",
    "gpu_graph_id",
    "memory.enable_memory_arena_shrinkage",
    "qnn.htp_perf_mode",
    "qnn.htp_perf_mode_post_run",
    "qnn.lora_config",
    "qnn.rpc_control_latency",
)
"""Run configuration keys of ONNX Runtime and of the QNN provider."""


def coerce_session_options(options: object, *, providers_given: bool = False) -> SessionOptions:
    """Our `SessionOptions` for what the application passed: ours as it is, ``None``, or onnxruntime's own.

    providers_given: the session got ``providers=``, which take precedence over those inside the options. Without,
    options of onnxruntime that hold providers are refused, because they cannot be read from there.
    """
    if isinstance(options, SessionOptions):
        return options
    if options is None:
        return SessionOptions()
    _require_foreign(options, "SessionOptions", "sess_options")
    has_providers = getattr(options, "has_providers", None)
    if not providers_given and has_providers is not None and has_providers():
        raise errors.OptionError(
            "The execution providers inside this onnxruntime.SessionOptions cannot be read.",
            cause="ONNX Runtime tells that there are some, and not which.",
            fix="Pass providers= and provider_options= to InferenceSession, or use qnnbridge.SessionOptions.",
        )
    warnings.warn(
        "From an onnxruntime.SessionOptions only attributes and known configuration entries can be read; free "
        "dimension overrides, initializers and custom op libraries in it are lost. Use qnnbridge.SessionOptions "
        "if you set any.",
        stacklevel=3,
    )
    ours = _copy_fields(options, SessionOptions())
    for key, value in _entries(getattr(options, "get_session_config_entry"), SESSION_KEYS):  # noqa: B009
        ours.add_session_config_entry(key, value)
    return ours


def coerce_run_options(options: object) -> RunOptions:
    """Our `RunOptions` for what the application passed: ours as it is, ``None``, or onnxruntime's own.

    Those of onnxruntime are read once: a later ``terminate = True`` on them is not seen.
    """
    if isinstance(options, RunOptions):
        return options
    if options is None:
        return RunOptions()
    _require_foreign(options, "RunOptions", "run_options")
    ours = _copy_fields(options, RunOptions())
    ours.terminate = getattr(options, "terminate", False)
    for key, value in _entries(getattr(options, "get_run_config_entry"), RUN_KEYS):  # noqa: B009
        ours.add_run_config_entry(key, value)
    return ours


def _require_foreign(options: object, name: str, argument: str) -> None:
    cls = type(options)
    if cls.__name__ != name or not cls.__module__.startswith("onnxruntime."):
        raise errors.RemoteTypeError(
            f"{argument} must be a {name} or None, not {cls.__name__}.", fix=f"Pass qnnbridge.{name}()."
        )


def _copy_fields(source: object, target: O) -> O:
    for name, field in type(target).fields().items():
        # An older onnxruntime lacks the newer attributes.
        value = getattr(source, name, field.default)
        if value != field.default:
            setattr(target, name, value)
    return target


def _entries(get: Callable[[str], str], keys: Iterable[str]) -> list[tuple[str, str]]:
    def value(key: str) -> str | None:
        try:
            return get(key)
        except RuntimeError:  # ONNX Runtime's way to say that there is no such entry
            return None

    return [(key, text) for key in keys if (text := value(key)) is not None]
