"""The checks of QNN's options: pure functions, no session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qnnbridge_host.engine import qnn_options
from qnnbridge_host.engine.qnn_options import DYNAMIC_OPTIONS, PROVIDER_OPTIONS, RUN_OPTIONS
from qnnbridge_host.model.option_names import contains, first_releases, newest_release
from qnnbridge_protocol.config_keys import SESSION_KEYS
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.arguments import read_chip


def checked(options: dict[str, Any], config: dict[str, str] | None = None, **more: Any) -> dict[str, str]:
    return qnn_options.provider_options(options, config or {}, **more)


def refused(options: dict[str, Any], config: dict[str, str] | None = None, **more: Any) -> OptionError:
    with pytest.raises(OptionError) as caught:
        checked(options, config, **more)
    return caught.value


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("htp_performnce_mode", "htp_performance_mode"),
        ("soc", "soc_model"),
        ("ep_select_backend_path", "backend_path"),
        ("HTP_ARCH", "htp_arch"),
        ("enable_fp16_precision", "enable_htp_fp16_precision"),
    ],
)
def test_the_error_for_an_unknown_option_names_the_intended_one(wrong: str, right: str) -> None:
    error = refused({wrong: "1"})
    assert wrong in error.message
    assert repr(right) in (error.fix or "")


def test_unknown_options_can_be_allowed_but_invalid_values_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(qnn_options.ALLOW_UNKNOWN_ENV, "1")
    assert checked({"option_of_next_year": "7"}) == {"option_of_next_year": "7"}
    refused({"htp_arch": "abc"})


@pytest.mark.parametrize("word", ["true", "True", "yes", "on"])
def test_a_switch_takes_one_or_zero_and_the_error_names_both(word: str) -> None:
    assert 'Write "1"' in (refused({"enable_htp_fp16_precision": word}).fix or "")


def test_python_values_become_strings() -> None:
    assert checked({"enable_htp_fp16_precision": True, "vtcm_mb": 8, "htp_bf16_enable": False}) == {
        "enable_htp_fp16_precision": "1",
        "vtcm_mb": "8",
        "htp_bf16_enable": "0",
    }


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("htp_performance_mode", "bursty", "'burst'"),
        ("htp_performance_mode", "BURST", "'burst'"),
        ("backend_type", "npu", "htp"),
        ("qnn_context_priority", "urgent", "normal_high"),
        ("htp_graph_finalization_optimization_mode", "4", "from 0 to 3"),
        ("device_id", "-1", "from 0 up"),
        ("device_id", "abc", "from 0 up"),
        ("device_id", "١", "from 0 up"),
        ("rpc_control_latency", "1.5", "whole number"),
        ("htp_arch", "74", "73"),
        ("htp_share_resource_optimization", "0", "1"),
        ("op_packages", "MyOp", "Operator:library:symbol"),
        ("op_affinity", "/nowhere/affinity.json", "existing file"),
    ],
)
def test_the_error_for_an_invalid_value_lists_the_allowed_ones(name: str, value: str, word: str) -> None:
    error = refused({name: value})
    assert name in error.message
    assert word in (error.fix or "")


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({"backend_type": "htp", "backend_path": __file__}, {}),
        ({"enable_htp_prepare_only": "1"}, {}),
        ({"soc_model": "60,88"}, {}),
        ({"htp_bf16_enable": "1"}, {}),
        ({"htp_bf16_enable": "1", "soc_model": "60"}, {}),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, str], config: dict[str, str]) -> None:
    assert "cannot be combined" in refused(options, config).message


@pytest.mark.parametrize(
    "options",
    [
        {"enable_htp_prepare_only": "1"},
        {"soc_model": "60,88"},
        {"htp_bf16_enable": "1", "soc_model": "X2".replace("X2", "SC8480XP")},
    ],
)
def test_the_same_options_are_accepted_in_a_valid_combination(options: dict[str, str]) -> None:
    checked(options, {"ep.context_enable": "1"})


def test_an_option_that_the_installed_release_does_not_know_is_refused() -> None:
    error = refused({"skip_backend_op_validation": "1"}, version=(2, 4, 0))
    assert "2.4.0" in error.message
    assert "2.5" in (error.cause or "")
    checked({"skip_backend_op_validation": "1"}, version=(2, 5, 0))
    checked({"soc_model": "60"}, version=(1, 20, 0))


def test_a_library_is_found_in_the_folder_of_the_provider_or_refused(tmp_path: Path) -> None:
    (tmp_path / "libQnnHtp.so").touch()
    (tmp_path / "libQnnGpu.so").touch()
    folder = str(tmp_path)
    assert checked({"backend_path": "libQnnHtp.so"}, library_folder=folder)["backend_path"] == str(
        tmp_path / "libQnnHtp.so"
    )
    error = refused({"backend_path": "QnnHtp.dll"}, library_folder=folder)
    assert "libQnnHtp.so" in (error.fix or "")
    assert "libQnnGpu.so" in (refused({"backend_type": "saver"}, library_folder=folder).fix or "")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "htp"),
        ({"backend_type": "gpu"}, "gpu"),
        ({"backend_path": "/x/libQnnSaver.so"}, "saver"),
        ({"backend_path": "QnnIr.dll"}, "ir"),
        ({"backend_path": "/x/my_shim.so"}, "my_shim"),
    ],
)
def test_the_backend_is_derived_from_the_options(options: dict[str, str], kind: str) -> None:
    assert qnn_options.backend_of(options) == kind


def test_run_options_that_would_abort_the_process_are_refused() -> None:
    for check, options in (
        (qnn_options.run_options, {"qnn.rpc_control_latency": "abc"}),
        (qnn_options.dynamic_options, {"kvcache_rewind": "abc"}),
    ):
        with pytest.raises(OptionError, match="cannot be 'abc'"):
            check(options)


def test_the_error_for_the_documented_run_option_that_qnn_ignores_names_the_one_that_works() -> None:
    with pytest.raises(OptionError) as caught:
        qnn_options.run_options({"qnn.perf_mode": "burst"})
    assert "'qnn.htp_perf_mode'" in (caught.value.fix or "")


def test_dynamic_options_are_checked() -> None:
    good = {"ep.dynamic.workload_type": "Efficient", "ep.dynamic.qnn_htp_performance_mode": "burst"}
    assert qnn_options.dynamic_options(good) == good
    with pytest.raises(OptionError) as caught:
        qnn_options.dynamic_options({"ep.dynamic.workload_type": "efficient"})
    assert "'Efficient'" in (caught.value.fix or "")


def test_every_choice_in_the_tables_is_accepted_by_its_own_check() -> None:
    for table in (PROVIDER_OPTIONS, RUN_OPTIONS, DYNAMIC_OPTIONS):
        for name, option in table.items():
            for choice in option.choices:
                assert qnn_options._checked(option, choice, None) == choice, name


# --- chips -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("60", (60,)), ("SC8380XP", (60,)), ("sm8550, 88", (43, 88)), ("0", (0,)), ("9999", (9999,))],
)
def test_a_chip_is_recognised_by_number_or_name(text: str, numbers: tuple[int, ...]) -> None:
    assert qnn_options.parse_chips(text) == numbers


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """Write the provider library of a release that is newer than the tables; return its folder."""
    texts = (b"htp_num_cores", b"SM8975", b"option_of_next_y", b"enable_htp_fp16_precision")
    for name in ("libonnxruntime_providers_qnn.so", "onnxruntime_providers_qnn.dll"):
        (tmp_path / name).write_bytes(b"\0".join((b"\x7fELF", *texts, b"")))
    return str(tmp_path)


@pytest.mark.parametrize(
    "options",
    [{"htp_num_cores": "2"}, {"option_of_next_year": "x"}, {"htp_arch": "85"}, {"soc_model": "60,SM8975"}],
)
def test_an_option_in_the_installed_library_that_is_not_in_the_tables_is_accepted_with_a_warning(
    options: dict[str, str], newer: str
) -> None:
    name, value = next(iter(options.items()))
    given = {**options, "vtcm_mb": "8"}
    config = {"ep.context_enable": "1"}
    assert checked(given, config, library_folder=newer, version=(2, 8, 0)) == given
    (warning,) = qnn_options.newer_than_tables(given)
    assert name in warning
    assert value.split(",")[-1] in warning or name not in PROVIDER_OPTIONS


@pytest.mark.parametrize(
    "options",
    [{"htp_num_core": "2"}, {"htp_num": "2"}, {"htp_arch": "74"}, {"soc_model": "SM8976"}, {"soc_model": "y"}],
)
def test_an_option_that_the_installed_library_does_not_contain_is_refused(
    options: dict[str, str], newer: str
) -> None:
    refused(options, library_folder=newer, version=(2, 8, 0))


def test_known_options_and_chips_cause_no_warning() -> None:
    assert qnn_options.newer_than_tables({"soc_model": "60,SC8480XP,X Elite", "htp_arch": 0, "vtcm_mb": 8}) == []


def test_the_error_for_an_option_of_another_operating_system_names_that_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = tuple(map(int, newest_release().split(".")))
    monkeypatch.setattr(qnn_options.sys, "platform", "linux")
    error = refused({"enable_htp_matmul_lut": "1"}, library_folder=str(tmp_path), version=version)
    assert "for Windows" in (error.cause or "")
    # A newer release counts as the newest one of the table, unless its own library contains the name.
    later = (version[0], version[1] + 1, 0)
    error = refused({"enable_htp_matmul_lut": "1"}, library_folder=str(tmp_path), version=later)
    assert "for Windows" in (error.cause or "")
    (tmp_path / "libonnxruntime_providers_qnn.so").write_bytes(b"\0enable_htp_matmul_lut\0")
    assert checked({"enable_htp_matmul_lut": "1"}, library_folder=str(tmp_path), version=later)
    monkeypatch.setattr(qnn_options.sys, "platform", "win32")
    assert checked({"enable_htp_matmul_lut": "1"}, library_folder=str(tmp_path), version=version)


def test_every_option_of_the_tables_is_in_the_libraries_of_an_operating_system() -> None:
    names = [*PROVIDER_OPTIONS, *RUN_OPTIONS, *DYNAMIC_OPTIONS]
    assert [name for name in names if not first_releases(name)] == []


@pytest.mark.parametrize(
    ("library", "found"),
    [
        (b"\0rpc_control_latency\0", True),
        (b"\0rpc_control_late\0code", True),
        (b"\0qnn.rpc_control_latency\0", False),
        (b"\0rpc_control_latency_us\0", False),
        (b"\0rpc_control\0", False),
        (b"", False),
    ],
)
def test_a_name_is_found_in_full_or_by_its_first_sixteen_bytes(library: bytes, found: bool) -> None:
    assert contains(library, "rpc_control_latency") is found


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("X Elite", 60), ("Snapdragon X Plus", 60), ("x2 elite", 88), ("8 Gen 3", 57), ("8cx gen 3", 37)),
        *(("8 Elite", 69), ("Snapdragon(R) X Elite - X1E80100 - Qualcomm(R) Oryon(TM) CPU", 60)),
    ],
)
def test_a_chip_is_recognised_by_its_marketing_name(text: str, number: int) -> None:
    assert checked({"soc_model": text})["soc_model"] == str(number)
    assert read_chip(text) == number


@pytest.mark.parametrize("text", ["Snapdragon", "8", "Gen 1", "Elite", ""])
def test_a_name_that_matches_no_chip_or_several_is_refused(text: str) -> None:
    if text != "8":  # a number
        refused({"soc_model": text})


def test_the_error_for_a_misspelt_chip_names_the_intended_one() -> None:
    with pytest.raises(OptionError) as caught:
        checked({"soc_model": "SC8380PX"})
    assert "SC8380XP (60)" in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("given", "arch", "chip"),
    [
        (None, None, "60"),
        ("0", None, "60"),
        ("43", "81", "43"),
        (None, "81", "88"),
        (None, "68", "30"),
        (None, "0", "60"),
    ],
)
def test_the_simulator_always_has_an_explicit_chip(given: str | None, arch: str | None, chip: str) -> None:
    assert qnn_options.chip_for_simulator(given, arch) == chip


# --- session keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("session.disable_cpu_ep_fallbck", "session.disable_cpu_ep_fallback"),
        ("ep.context_embedmode", "ep.context_embed_mode"),
        ("session.intra_op.allow_spinnign", "session.intra_op.allow_spinning"),
    ],
)
def test_a_misspelt_session_key_is_refused(typo: str, meant: str) -> None:
    with pytest.raises(OptionError) as caught:
        qnn_options.refuse_misspelt(typo, SESSION_KEYS, "session key")
    assert repr(meant) in (caught.value.fix or "")


@pytest.mark.parametrize(
    "key", ["session.a_key_of_a_later_release", "ep.myprovider.x", "session.intra_op.allow_spinning"]
)
def test_a_known_session_key_and_a_key_unlike_any_other_are_accepted(key: str) -> None:
    qnn_options.refuse_misspelt(key, SESSION_KEYS, "session key")


def test_no_known_session_key_is_refused_as_a_typo_of_another() -> None:
    for key in SESSION_KEYS:
        qnn_options.refuse_misspelt(key, SESSION_KEYS, "session key")


@pytest.mark.parametrize("priority", ["normal_low", "high_plus", "critical", "critical_plus"])
@pytest.mark.parametrize("version", [(1, 24, 1), (2, 4, 0)])
def test_a_priority_that_the_release_does_not_have_is_refused(priority: str, version: tuple[int, ...]) -> None:
    error = refused({"qnn_context_priority": priority}, version=version)
    assert repr(priority) in error.message
    assert ".".join(map(str, version)) in error.message
    assert "2.5" in (error.cause or "")
    assert "Allowed values: normal, low, normal_high, high." in (error.fix or "")


def test_a_priority_is_accepted_if_the_release_has_it_or_does_not_report_any() -> None:
    for version in ((2, 5, 0), (2, 7, 0), ()):
        for priority in qnn_options.PRIORITIES:
            assert checked({"qnn_context_priority": priority}, version=version) == {
                "qnn_context_priority": priority
            }
    for priority in ("low", "normal", "normal_high", "high"):
        assert checked({"qnn_context_priority": priority}, version=(1, 20))
