"""Compile a model for QNN by creating a session with the option that makes ONNX Runtime write an EPContext model.

This works with onnxruntime-qnn 1.x and 2.x. ONNX Runtime's ``ModelCompiler`` is not used: it exists only with 2.x,
does not report the placement, and writes an ordinary copy of the model if QNN does not accept any node.
Invariants: when `compile_model` returns, the .onnx file is written and at least one node of the model is on QNN.
After an error the caller removes the files. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from qnnbridge_host.engine.qnn_options import CONTEXT_ENABLE, DISABLE_COMPILE, PROVIDER
from qnnbridge_protocol.errors import CompileFailed, OptionError, from_wire
from qnnbridge_protocol.specs import CompileSpec, ProviderSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.engine import Engine, EngineSession

CONTEXT_PATH = "ep.context_file_path"
CONTEXT_EMBED = "ep.context_embed_mode"
SHARE = "ep.share_ep_contexts"
STOP_SHARE = "ep.stop_share_ep_contexts"
KEEP_EDGES = "offload_graph_io_quantization"

_OURS = frozenset((CONTEXT_ENABLE, CONTEXT_PATH, CONTEXT_EMBED, SHARE, STOP_SHARE, DISABLE_COMPILE))
# Options that make a running session write files. A session that only compiles must not write these files.
_NOT_WANTED = frozenset(("enable_profiling", "optimized_model_filepath"))


def compile_model(
    engine: Engine,
    spec: CompileSpec,
    model: Any | None,
    initializers: Mapping[str, Any],
    on_phase: Callable[[str], None],
) -> EngineSession:
    """Write the compiled model and return the session that wrote it; its ``info`` contains the placement.

    Raises:
        CompileFailed: no compiled model was written.
        BridgeError: the session could not be created.
    """
    # Check this first: if the CPU is allowed, ONNX Runtime creates a session without QNN, reports no error and
    # compiles nothing.
    problem = engine.describe().get("qnn_problem")
    if problem:
        raise from_wire(problem)
    session = engine.create_session(context_session(spec), model, initializers, on_phase)
    try:
        placed = session.info.placement
        if placed.known and not placed.qnn_nodes:
            _explain(engine, spec.session, model, initializers, on_phase)
            raise _nothing_on_qnn(spec.session)
        if not os.path.exists(spec.output):
            # An older ONNX Runtime reports no placement. In that case a missing file means that no node is on QNN.
            if not placed.known:
                raise _nothing_on_qnn(spec.session)
            raise CompileFailed(
                "QNN accepted the model but did not write a compiled model.",
                cause="The library that writes context binaries (QnnSystem) is missing from the installation of "
                "QNN.",
                fix="Reinstall onnxruntime-qnn in the host's Python.",
            )
    except BaseException:
        session.close()
        raise
    return session


def context_session(spec: CompileSpec) -> SessionSpec:
    """Return the description of the session that writes the compiled model."""
    session = spec.session
    if session.providers and PROVIDER not in [provider.name for provider in session.providers]:
        raise OptionError(
            f"The model cannot be compiled, because the session's providers do not include {PROVIDER}.",
            fix=f"List {PROVIDER} first, or omit the providers.",
        )
    # Remove the application's entries that would change the output path or share the model's weights.
    entries = {key: text for key, text in session.config_entries.items() if key not in _OURS}
    entries |= {
        CONTEXT_ENABLE: "1",
        CONTEXT_PATH: spec.output,
        CONTEXT_EMBED: "1" if spec.embed else "0",
    }
    # A session that shares weights writes its .onnx file without a binary. The last session, which stops the
    # sharing, writes one binary for all models, named after the first model.
    if spec.share != "no":
        entries[SHARE] = "1"
    if spec.share == "last":
        entries[STOP_SHARE] = "1"
    options = {name: value for name, value in session.options.items() if name not in _NOT_WANTED}
    providers = session.providers or (ProviderSpec(PROVIDER),)
    return dataclasses.replace(
        session,
        options=options,
        config_entries=entries,
        providers=tuple(_keep_edges(provider) for provider in providers),
    )


def _keep_edges(provider: ProviderSpec) -> ProviderSpec:
    """Keep quantization at the graph's inputs and outputs on QNN.

    If the CPU is allowed, QNN by default leaves this quantization to the CPU, and a strict session could not load
    the compiled model.
    """
    if provider.name != PROVIDER:
        return provider
    return ProviderSpec(PROVIDER, {KEEP_EDGES: "0", **provider.options})


def _explain(
    engine: Engine,
    session: SessionSpec,
    model: Any | None,
    initializers: Mapping[str, Any],
    on_phase: Callable[[str], None],
) -> None:
    """Raise `PlacementRefused` with the nodes and reasons that a strict session of the same model would report."""
    options = {name: value for name, value in session.options.items() if name not in _NOT_WANTED}
    entries = {key: text for key, text in session.config_entries.items() if key not in _OURS}
    strict = dataclasses.replace(session, fallback="error", options=options, config_entries=entries)
    engine.create_session(strict, model, initializers, on_phase).close()


def _nothing_on_qnn(session: SessionSpec) -> CompileFailed:
    name = os.path.basename(session.model_path) if session.model_path else "the model"
    return CompileFailed(
        f"No node of {name} can run on QNN, so there is nothing to compile.",
        fix="Change its nodes so that QNN supports them: `qnnbridge analyze` shows what QNN refuses, and why.",
        details={"qnn_nodes": 0},
    )
