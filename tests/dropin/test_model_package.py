"""Model packages against onnxruntime's own: the same files, facts, choices, numbers and errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnxruntime as real

import qnnbridge.ort as ort
from tests.dropin.wrong_uses import MUL

pytestmark = pytest.mark.process

if not hasattr(real, "ModelPackage"):
    pytest.skip("needs the model packages of onnxruntime 1.32", allow_module_level=True)

CPU, QNN = "CPUExecutionProvider", "QNNExecutionProvider"
X = np.arange(6, dtype=np.float32).reshape(3, 2)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written(module: Any, folder: Path) -> tuple[Any, ...]:
    """Call all methods of a package; return their results and the written files."""
    asset = folder.parent / "asset"
    asset.mkdir(exist_ok=True)
    (asset / "words.txt").write_text("one two")
    package = module.ModelPackage()
    package.set_metadata("name", version="1.2", description="three")
    package.set_layout("portable")
    package.set_component_inline("main", json.dumps({"variants": {}}))
    package.set_component_inline("rest", json.dumps({"variants": {"v": {}}}))
    package.set_variant("main", "cpu", json.dumps({"ep": CPU}))
    package.set_variant("main", "gone", "{}")
    package.set_variant_executor_info_inline("main", "cpu", "ort", json.dumps({"model_file": "m.onnx"}))
    package.set_variant_executor_info_inline("main", "cpu", "other", "{}")
    package.remove_variant_executor_info("main", "cpu", "other")
    package.remove_variant("main", "gone")
    package.remove_component("rest")
    package.set_additional_metadata_json("manifest", json='{"a": 1}')
    package.set_additional_metadata_json("variant", "main", "cpu", '{"b": 2}')
    uri = package.add_shared_asset(str(asset))
    facts = [
        uri,
        package.compute_directory_hash(str(asset)),
        module.ModelPackage.compute_directory_hash(str(asset)),
        package.get_component_json("main"),
        package.get_variant_json("main", "cpu"),
        package.get_info(),
        package.resolve_asset_uri(uri),
    ]
    package.commit(str(folder))
    package.close()
    with pytest.raises(ValueError, match="is closed"):
        package.get_info()
    opened = module.ModelPackage.open(str(folder), strict_unknown_fields=False)
    text = json.dumps([facts, opened.get_info(), opened.resolve_string_ref("words")])
    opened.prune()
    opened.remove_shared_asset(uri)
    opened.commit(None, module.ModelPackageWriteMode.PRESERVE)
    return text.replace(str(folder), "FOLDER"), tree(folder)


def test_packages_are_written_as_by_onnxruntime(tmp_path: Path) -> None:
    assert written(ort, tmp_path / "ours") == written(real, tmp_path / "theirs")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a package with a variant for the CPU, one for QNN, and one for any provider."""
    root = tmp_path_factory.mktemp("package")
    told: dict[str, Any] = {}
    for name, ep in (("cpu", CPU), ("qnn", QNN), ("any", None)):
        folder = root / "main" / name
        folder.mkdir(parents=True)
        shutil.copy(MUL, folder / "m.onnx")
        settings: dict[str, Any] = {"model_file": "m.onnx"}
        if name == "cpu":
            settings["session_options"] = {"session.disable_prepacking": "1"}
        if name == "qnn":
            settings["provider_options"] = {"soc_model": "60"}
        told[name] = {"variant_directory": f"main/{name}", "executor_info": {"ort": settings}}
        if ep:
            told[name]["ep"] = ep
    manifest = {"schema_version": "1.0", "layout": "portable", "components": {"main": {"variants": told}}}
    (root / "manifest.json").write_text(json.dumps(manifest))
    return str(root)


def facts_of(module: Any, package: str) -> list[Any]:
    context = module.ModelPackageContext(package)
    chosen = context.select_component("main", module.ModelPackageOptions(module.SessionOptions()))
    session = chosen.create_session()
    with pytest.raises(NotImplementedError, match="not supported for sessions created from a model package"):
        session.set_providers([CPU])
    explicit = module.SessionOptions()
    explicit.add_provider(CPU, {})
    name = session.get_inputs()[0].name
    return [
        context.get_component_count(),
        context.get_component_names(),
        context.get_schema_version(),
        context.get_variant_count("main"),
        context.get_variant_names("main"),
        [context.get_variant_ep_name("main", variant) for variant in ("cpu", "qnn", "any")],
        context.resolve_string_ref("abc"),
        chosen.get_selected_variant_name(),
        chosen.get_selected_variant_folder_path(),
        session.get_session_options().get_session_config_entry("session.disable_prepacking"),
        session.get_providers(),
        session.run(None, {name: X})[0].tolist(),
        chosen.create_session(explicit).run(None, {name: X})[0].tolist(),
    ]


def test_a_variant_is_chosen_and_opened_as_in_onnxruntime(package: str) -> None:
    assert facts_of(ort, package) == facts_of(real, package)


@pytest.mark.simulator
def test_the_variant_for_the_npu_runs_on_the_npu(package: str) -> None:
    pytest.importorskip("onnxruntime_qnn")
    options = ort.SessionOptions()
    options.add_provider(QNN, {})
    chosen = ort.ModelPackageContext(package).select_component("main", ort.ModelPackageOptions(options))
    assert chosen.get_selected_variant_name() == "qnn"
    session = chosen.create_session()
    assert session.placement.qnn_nodes == 1
    assert session.placement.soc_model == "60"
    expected = real.InferenceSession(MUL).run(None, {session.get_inputs()[0].name: X})[0]
    assert np.allclose(session.run(None, {session.get_inputs()[0].name: X})[0], expected, rtol=1e-2)
    for_the_cpu = ort.SessionOptions()
    for_the_cpu.add_provider(CPU, {})
    with pytest.raises(Exception, match="execution provider was not registered: QNN"):
        chosen.create_session(for_the_cpu)


def context_of(module: Any, package: str) -> Any:
    return module.ModelPackageContext(package)


WRONG: dict[str, Callable[[Any, str], Any]] = {
    "no folder": lambda m, _: m.ModelPackage.open("not there"),
    "a number as folder": lambda m, _: m.ModelPackage.open(3),
    "a layout that is none": lambda m, _: m.ModelPackage().set_layout("flat"),
    "a component without variants": lambda m, _: m.ModelPackage().set_component_inline("a", "{}"),
    "no JSON": lambda m, _: m.ModelPackage().set_component_inline("a", "{"),
    "a scope that is none": lambda m, _: m.ModelPackage().set_additional_metadata_json("all", json="{}"),
    "a component that is not there": lambda m, _: m.ModelPackage().get_component_json("a"),
    "a commit to nowhere": lambda m, _: m.ModelPackage().commit(),
    "a mode that is none": lambda m, _: m.ModelPackage().commit(None, 3),
    "a hash of nothing": lambda m, _: m.ModelPackage.compute_directory_hash("not there"),
    "a context of nothing": lambda m, _: m.ModelPackageContext("not there"),
    "a context of a number": lambda m, _: m.ModelPackageContext(3),
    "options that are none": lambda m, _: m.ModelPackageOptions(3),
    "a chosen variant by itself": lambda m, _: m.ModelPackageComponentContext(),
    "a component that is none": lambda m, p: context_of(m, p).select_component(
        "none", m.ModelPackageOptions(m.SessionOptions())
    ),
    "a choice by nothing": lambda m, p: context_of(m, p).select_component("main", 3),
    "variants of none": lambda m, p: context_of(m, p).get_variant_names("none"),
    "a session with a number": lambda m, p: (
        context_of(m, p).select_component("main", m.ModelPackageOptions(m.SessionOptions())).create_session(3)
    ),
}


def outcome(attempt: Callable[[], Any]) -> tuple[str, str]:
    try:
        attempt()
    except Exception as error:
        builtin = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
        return builtin.__name__, str(error).split("Invoked with")[0].replace(os.getcwd() + os.sep, "")
    return "", ""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_uses_of_model_packages_end_as_in_onnxruntime(name: str, package: str) -> None:
    theirs = outcome(lambda: WRONG[name](real, package))
    assert outcome(lambda: WRONG[name](ort, package)) == theirs
