"""Whether a compiled model fits a host: chip, architecture, SDK, and different rules of the simulator."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from qnnbridge_host.model.compatibility import HostTraits, check_compiled, release_with_sdk, sdk_numbers, short_sdk
from qnnbridge_host.model.scan import Verdict, scan_model

pytest.importorskip("onnx")

from tests.unit import epcontext_models as models

OK, RECOMPILE, CANNOT = "ok", "recompile recommended", "cannot run here"
CHIPS = {
    30: ("SM8350", 68),
    36: ("SM8450", 69),
    60: ("SC8380XP", 73),
    57: ("SM8650", 75),
    69: ("SM8750", 79),
    88: ("SC8480XP", 81),
}


def npu(chip: int | None = 60, sdk: str = "2.51.0", release: str = "2.7.0") -> HostTraits:
    return HostTraits("1.31.1", release, sdk, False, chip, CHIPS[chip][1] if chip else None)


def simulator(chip: int = 60, sdk: str = "2.51.0") -> HostTraits:
    return HostTraits("1.31.1", "2.7.0", sdk, True, chip, CHIPS[chip][1])


def model_for(folder: Path, chip: int, sdk: str | None = None) -> Path:
    """Return a model as QNN writes it: chip and SDK are in the context binary, in the metadata and in the node."""
    path = models.real(folder)
    models.retarget(folder / "a_qnn.bin", *CHIPS[chip], sdk=sdk)
    version = short_sdk(sdk) if sdk else "2.51"
    models.set_compatibility(path, f"v2:6:{version}.0:5.{version.split('.')[1]}.0:0:{chip}:0:0")
    return models.edit(path, ep_sdk_version=sdk or "v2.51.0.260929181845")


def judge(path: Path, host: HostTraits) -> Verdict:
    return check_compiled(path, scan_model(path), host)


# --- an NPU ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made_for", "host", "level"),
    [
        (60, 60, OK),
        (60, 57, RECOMPILE),
        (60, 88, RECOMPILE),
        (57, 60, CANNOT),
        (69, 60, CANNOT),
        (88, 60, CANNOT),
        (88, 88, OK),
        (30, 60, CANNOT),
        (36, 60, CANNOT),
        (60, 30, CANNOT),
        (30, 36, RECOMPILE),
        (36, 30, CANNOT),
    ],
)
def test_an_npu_accepts_its_own_architecture_and_older_ones_of_its_kind(
    made_for: int, host: int, level: str, tmp_path: Path
) -> None:
    verdict = judge(model_for(tmp_path, made_for), npu(host))
    assert verdict.level == level
    if level != OK:
        assert f"compiled with QNN 2.51 for SoC {made_for} (V{CHIPS[made_for][1]})" in verdict.reason
        assert f"on V{CHIPS[host][1]}" in verdict.reason
        assert f"soc_model={host}" in (verdict.fix or "")


def test_the_verdict_is_a_readable_sentence(tmp_path: Path) -> None:
    verdict = judge(model_for(tmp_path, 88), npu(60, "2.37.1", "1.23.2"))
    assert verdict.message == (
        "cannot run here: compiled with QNN 2.51 for SoC 88 (V81); this host has QNN 2.37 on V73"
    )
    assert (verdict.fix or "").startswith("Recompile from the original model with soc_model=60. Installing ")
    assert "is not enough" in (verdict.fix or "")
    text = str(verdict.error("m_ctx.onnx", "/models/m_ctx.onnx"))
    assert text.startswith("m_ctx.onnx cannot run here: compiled with QNN 2.51")
    assert "Fix: Recompile from the original model" in text


def test_an_unknown_chip_is_not_judged(tmp_path: Path) -> None:
    verdict = judge(model_for(tmp_path, 88), npu(None))
    assert verdict.level == OK
    assert "chip of the host is not known" in verdict.notes[0]


def test_a_model_for_a_chip_with_more_vtcm_is_refused(tmp_path: Path) -> None:
    host = HostTraits("1.31.1", "2.7.0", "2.51.0", False, 68, 73)  # SM8635, also a V73, but with 4 MB
    verdict = judge(models.real(tmp_path), host)
    assert verdict.level == CANNOT
    assert "8 MB of VTCM; this host's chip has 4 MB" in verdict.reason


def test_a_model_for_several_chips_runs_on_each_of_them(tmp_path: Path) -> None:
    path = models.edit(models.real(tmp_path), is_multi_soc_ep_context=1)
    models.set_compatibility(path, "v2:6:2.51.0:5.51.0:0,0:60,88:0,0:0")
    assert judge(path, npu(60)).level == OK
    assert judge(path, npu(88)).level == OK
    assert judge(path, npu(30)).level == CANNOT


def test_a_model_compiled_on_the_runtime_driver_should_be_recompiled(tmp_path: Path) -> None:
    path = models.set_compatibility(models.real(tmp_path), "v2:6:2.51.0:5.51.0:0:60:0:1")
    assert judge(path, npu(60)).level == RECOMPILE
    assert "HNRD" in judge(path, npu(60)).reason
    assert judge(path, simulator()).level == OK


# --- versions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made_with", "host", "level"),
    [
        ("v2.51.0.260929181845", "2.51.0", OK),
        ("v2.51.0.260929181845", "2.51.0.260929181845", OK),
        ("v2.51.0.260929181845", "2.50.40", CANNOT),
        ("v2.51.0.260929181845", "2.37.1", CANNOT),
        ("v2.48.0.260929181845", "2.51.0", OK),
        ("v2.51.4.260929181845", "2.51.0", RECOMPILE),
    ],
)
@pytest.mark.parametrize("host_of", [npu, simulator])
def test_a_model_of_a_newer_sdk_cannot_be_loaded(
    made_with: str, host: str, level: str, host_of: object, tmp_path: Path
) -> None:
    verdict = judge(model_for(tmp_path, 60, made_with), host_of(60, host))  # type: ignore[operator]
    assert verdict.level == level
    if level == CANNOT:
        assert "QNN cannot read a context binary of a newer SDK" in (verdict.cause or "")
        assert "or install " in (verdict.fix or "")


def test_the_suggested_release_is_the_oldest_that_is_new_enough() -> None:
    releases = pytest.importorskip("qnnbridge_host.model.releases").load_releases()
    assert release_with_sdk("v2.51.0.260929181845") == "onnxruntime-qnn 2.7.0"
    assert release_with_sdk("2.99") is None
    for sdk in ("2.37.1", "2.42.0", "2.48.40"):
        chosen = (release_with_sdk(sdk) or "").removeprefix("onnxruntime-qnn ")
        (bundled,) = {r.qnn_sdk for r in releases if r.version == chosen}
        assert (sdk_numbers(bundled) or ())[:2] == (sdk_numbers(sdk) or ())[:2]


def test_of_releases_with_the_same_sdk_the_lowest_version_is_suggested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    releases = pytest.importorskip("qnnbridge_host.model.releases")
    newest = releases.load_releases()[0]
    alike = tuple(dataclasses.replace(newest, version=version) for version in ("2.10.0", "2.9.0"))
    monkeypatch.setattr(releases, "load_releases", lambda: alike)
    assert release_with_sdk(newest.qnn_sdk) == "onnxruntime-qnn 2.9.0"


def test_an_older_sdk_only_causes_a_note(tmp_path: Path) -> None:
    verdict = judge(model_for(tmp_path, 60, "v2.48.0.260929181845"), npu())
    assert verdict.notes == ("Compiled with an older QNN (2.48) than the QNN of this host (2.51).",)


def test_without_a_version_no_verdict_is_given(tmp_path: Path) -> None:
    verdict = judge(model_for(tmp_path, 60), HostTraits("1.31.1", "2.7.0", None, True, 60, 73))
    assert verdict.level == OK
    assert "could not be compared" in verdict.notes[0]


def test_a_host_without_qnn_cannot_run_a_compiled_model(tmp_path: Path) -> None:
    verdict = judge(model_for(tmp_path, 60), HostTraits("1.31.1"))
    assert verdict.level == CANNOT
    assert "this host has no onnxruntime-qnn" in verdict.reason


# --- priority of the sources -----------------------------------------------------------------------------


def test_the_context_binary_overrides_the_metadata(tmp_path: Path) -> None:
    path = models.edit(models.real(tmp_path), ep_sdk_version="v9.9.9.1")
    models.set_compatibility(path, "v2:6:2.60.0:5.60.0:81:88:0:0")
    verdict = judge(path, npu(60))
    assert verdict.level == OK
    assert set(verdict.notes) == {
        "The model's metadata record QNN 2.60, but the context binary records 2.51.",
        "The model's nodes record QNN 9.9, but the context binary records 2.51.",
    }


def test_the_metadata_are_used_if_the_context_binary_records_nothing(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    (tmp_path / "a_qnn.bin").write_bytes(b"\1\2\3\4" * 5000)  # of an unknown format
    models.set_compatibility(path, "6:2.60.0:5.60.0:0.0.0:81:0")
    verdict = judge(path, npu(60))
    assert "compiled with QNN 2.60 for V81; this host has QNN 2.51 on V73" in verdict.reason
    models.set_compatibility(path, None)
    assert judge(path, npu(60)).level == OK
    assert "does not record the chip" in judge(path, npu(60)).notes[0]
    assert judge(models.edit(path, ep_sdk_version="v2.60.0.1"), npu(60)).level == CANNOT


@pytest.mark.parametrize("text", ["garbage", "v7:1:2", ""])
def test_invalid_metadata_are_ignored(text: str, tmp_path: Path) -> None:
    path = models.edit(models.set_compatibility(models.real(tmp_path), text), ep_sdk_version="garbage")
    assert judge(path, npu(60)).level == OK


def test_a_model_for_another_backend_is_refused_by_the_htp(tmp_path: Path) -> None:
    path = models.set_compatibility(models.real(tmp_path), "v2:4:2.51.0:5.51.0:0:0:0:0")
    assert "QNN's backend 4" in judge(path, npu(60)).reason


# --- the simulator ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("made_for", [30, 36, 60, 57, 69])
@pytest.mark.parametrize("host", [30, 60, 69, 88])
def test_the_simulator_loads_all_architectures_before_v81(made_for: int, host: int, tmp_path: Path) -> None:
    assert judge(model_for(tmp_path, made_for), simulator(host)).level == OK


@pytest.mark.parametrize("host", [30, 60, 69])
def test_v81_does_not_load_on_an_older_simulated_chip(host: int, tmp_path: Path) -> None:
    verdict = judge(model_for(tmp_path, 88), simulator(host))
    assert verdict.level == CANNOT
    assert "soc_model=88 to simulate SoC 88 (SC8480XP, V81)" in (verdict.fix or "")
    assert judge(model_for(tmp_path, 88), simulator(88)).level == OK


def test_a_model_for_several_chips_does_not_load_on_the_simulator(tmp_path: Path) -> None:
    path = models.edit(models.real(tmp_path), is_multi_soc_ep_context=1)
    models.set_compatibility(path, "v2:6:2.51.0:5.51.0:0,0:60,88:0,0:0")
    assert judge(path, simulator()).level == CANNOT
    assert "several chips" in judge(path, simulator()).reason


def test_a_session_on_another_backend_is_not_judged(tmp_path: Path) -> None:
    host = HostTraits("1.31.1", "2.7.0", "2.51.0", True, 60, 73, backend="gpu")
    verdict = judge(model_for(tmp_path, 88), host)
    assert verdict.level == OK
    assert "gpu" in verdict.notes[0]
