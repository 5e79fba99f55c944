"""Releases that fit a machine: the rules, and the attempts that users have documented."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnbridge_host.model.releases import Release, for_version, load_releases, satisfies, sdk_is_newer, version_key
from qnnbridge_tools.versions.fitness import (
    PLATFORM_MACHINES,
    HostMachine,
    Platform,
    best_of,
    fits,
    judge,
    newest_fitting,
    ort_bounds,
    pythons_text,
)

# The computer of the documented attempts.
X_ELITE = HostMachine("win_arm64", "ARM64", (3, 13), system_sdk="2.40", hexagon=73)

X64_PYTHON = HostMachine("win_amd64", "ARM64", (3, 13), system_sdk="2.40", hexagon=73)


def only(version: str, platform: str) -> Release:
    (release,) = for_version(version, platform)
    return release


def codes(version: str, machine: HostMachine) -> list[str]:
    platform = machine.platform.replace("linux", "manylinux_2_35")
    return [reason.code for reason in fits(only(version, platform), machine)]


# --- the documented attempts -----------------------------------------------------------------------


def test_a_python_of_32_bits_has_no_release() -> None:
    machine = HostMachine("win32", "ARM64", (3, 11))
    assert judge(machine) == []
    assert all(reasons[0].code == "other-platform" for r in load_releases() if (reasons := fits(r, machine)))


def test_the_advice_for_an_x64_python_is_an_arm64_python() -> None:
    reasons = fits(only("1.23.2", "win_amd64"), X64_PYTHON)
    assert [(reason.code, reason.severity) for reason in reasons] == [("emulated", "warning")]
    assert reasons[0].fix == "Use an ARM64 Python for the host."


def test_x64_libraries_without_access_to_the_npu_are_refused_on_arm() -> None:
    assert codes("1.22.2", X64_PYTHON) == ["simulator-only"]


def test_sdk_2_42_on_a_system_with_2_40_is_refused() -> None:
    for version in ("1.24.1", "2.0.0"):
        (reason,) = fits(only(version, "win_arm64"), X_ELITE)
        assert (reason.code, reason.severity) == ("sdk-newer-than-system", "refused")
        assert "2.42.0" in reason.text
        assert "2.40" in reason.text


def test_1_22_0_is_refused_for_error_1002() -> None:
    (reason,) = fits(only("1.22.0", "win_arm64"), X_ELITE)
    assert (reason.code, reason.severity) == ("error-1002", "warning")


@pytest.mark.parametrize("version", ["1.23.0", "1.23.1", "1.23.2"])
def test_1_23_works_on_x_elite_without_a_finding(version: str) -> None:
    assert codes(version, X_ELITE) == []


def test_the_best_release_for_x_elite_is_1_23_2() -> None:
    best = newest_fitting(X_ELITE)
    assert best is not None
    assert best.version == "1.23.2"
    assert best.platform == "win_arm64"


# --- the rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "chip", "python", "version"),
    [
        ("2.51", 73, (3, 14), "2.7.0"),
        ("2.51.0", 81, (3, 11), "2.7.0"),
        ("2.50.40", 73, (3, 12), "2.6.0"),
        ("2.45", 73, (3, 12), "2.1.1"),
        ("2.42", 81, (3, 13), "2.0.0"),
        ("2.40", 68, (3, 11), "1.23.2"),
        ("2.40", 81, (3, 13), None),  # the chip is newer than that driver's QNN
        ("2.40", 73, (3, 14), None),  # wheels for 3.14 were released with a newer QNN
        ("2.20", 73, (3, 11), None),
        (None, None, None, "2.7.0"),
    ],
)
def test_the_newest_fitting_release_is_chosen(
    system: str | None, chip: int | None, python: tuple[int, int] | None, version: str | None
) -> None:
    best = newest_fitting(HostMachine("win_arm64", "ARM64", python, system_sdk=system, hexagon=chip))
    assert (best.version if best else None) == version


def test_a_chip_that_is_too_new_and_one_without_a_stub_have_different_reasons() -> None:
    new = fits(only("1.23.2", "win_arm64"), HostMachine("win_arm64", "ARM64", (3, 13), hexagon=81))
    old = fits(only("2.7.0", "win_amd64"), HostMachine("win_amd64", "ARM64", (3, 13), hexagon=68))
    assert "too old for a V81" in new[0].text
    assert "no stub library for a V68" in old[0].text


def test_the_refusal_for_a_python_without_a_wheel_names_versions_with_one() -> None:
    (reason,) = fits(only("1.23.2", "win_arm64"), HostMachine("win_arm64", "ARM64", (3, 14)))
    assert reason.code == "no-wheel-for-python"
    assert "3.11 to 3.13" in reason.text


@pytest.mark.parametrize(("python", "refused"), [((3, 11), True), ((3, 12), False)])
def test_the_loader_of_2_x_chooses_the_simulator_on_x64_python_3_11(python: tuple[int, int], refused: bool) -> None:
    machine = HostMachine("win_amd64", "ARM64", python)
    for version in ("2.1.0", "2.3.0", "2.7.0"):
        assert ("loader-picks-simulator" in codes(version, machine)) is refused
    assert "loader-picks-simulator" not in codes("2.0.0", machine), "it has no simulator to pick"


def test_on_an_x64_pc_only_x64_releases_are_offered() -> None:
    machine = HostMachine("win_amd64", "x64", (3, 12))
    assert codes("1.23.2", machine) == ["arm-only"]
    assert codes("2.0.0", machine) == ["arm-only"]
    assert codes("1.22.2", machine) == codes("2.7.0", machine) == ["simulator"]
    best = newest_fitting(machine)
    assert best is not None
    assert best.version == "2.7.0"


def test_a_release_without_libraries_is_refused() -> None:
    assert codes("1.17.3", HostMachine("win_arm64", "ARM64", (3, 11))) == ["no-libraries"]


def test_on_linux_releases_are_marked_as_simulator_and_an_old_glibc_is_refused() -> None:
    machine = HostMachine("linux_x86_64", "x86_64", (3, 12), glibc=(2, 36))
    assert codes("2.7.0", machine) == ["simulator"]
    old = HostMachine("linux_x86_64", "x86_64", (3, 12), glibc=(2, 31))
    assert codes("2.7.0", old) == ["old-glibc", "simulator"]


def test_the_sdk_of_a_driver_is_not_compared_with_a_simulator() -> None:
    machine = HostMachine("linux_x86_64", "x86_64", (3, 12), system_sdk="2.20", hexagon=99)
    assert codes("2.7.0", machine) == ["simulator"]


def test_a_development_build_is_never_the_best_if_there_is_a_release() -> None:
    machine = HostMachine("win_arm64", "ARM64", (3, 12), system_sdk="2.28.2")
    judged = judge(machine)
    assert any(one.release.version == "1.20.2.dev20250213004" and one.verdict == "doubtful" for one in judged)
    best = best_of(judged)
    assert best is not None
    assert best.release.version == "1.20.2"
    dev = [one for one in judged if "dev" in one.release.version]
    assert best_of(dev) is dev[0]


# --- compatible onnxruntime ------------------------------------------------------------------------


@pytest.mark.parametrize("ort", ["1.28.0", "1.31.1", "1.32.0"])
def test_plugins_before_2_4_fail_with_a_new_onnxruntime_although_pip_allows_it(ort: str) -> None:
    machine = HostMachine("linux_x86_64", "x86_64", (3, 12), ort=ort)
    assert codes("2.3.0", machine) == ["ort-too-new", "simulator"]
    assert codes("2.4.0", machine) == ["simulator"]
    arm = HostMachine("win_arm64", "ARM64", (3, 12), ort=ort)
    assert codes("2.1.0", arm) == ["ort-too-new"]


def test_plugins_need_an_onnxruntime_that_supports_plugins() -> None:
    machine = HostMachine("linux_x86_64", "x86_64", (3, 12), ort="1.23.2")
    assert "ort-too-old" in codes("2.7.0", machine)


def test_a_release_of_1_x_contains_onnxruntime() -> None:
    machine = HostMachine("win_arm64", "ARM64", (3, 12), ort="1.31.1")
    (reason,) = fits(only("1.23.2", "win_arm64"), machine)
    assert reason.code == "other-ort"
    assert "1.23.2" in reason.text


def test_an_exact_requirement_in_the_metadata_is_respected() -> None:
    machine = HostMachine("win_arm64", "ARM64", (3, 12), ort="1.25.1")
    assert codes("2.2.0", machine) == ["other-ort"]


@pytest.mark.parametrize("platform", ["win_arm64", "win_amd64", "linux_x86_64", "linux_aarch64"])
@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_onnxruntime_1_32_works_with_2_4_and_later_wherever_it_has_wheels(platform: Platform, minor: int) -> None:
    judged = judge(HostMachine(platform, PLATFORM_MACHINES[platform], (3, minor), ort="1.32.0"))
    usable = [one for one in judged if one.verdict != "refused"]
    assert [one.release.version for one in usable] == ["2.7.0", "2.6.0", "2.5.0", "2.4.0"]
    assert {one.verdict for one in usable} == {"works"}


@pytest.mark.parametrize("ort", ["1.32.1", "1.40.0", "2.0.0"])
def test_with_an_untested_onnxruntime_a_release_is_doubtful_and_not_refused(ort: str) -> None:
    machine = HostMachine("win_arm64", "ARM64", (3, 12), ort=ort)
    (reason,) = fits(only("2.7.0", "win_arm64"), machine)
    assert (reason.code, reason.severity) == ("ort-not-tried", "warning")
    assert ort in reason.text
    assert "1.32.0" in reason.text
    assert codes("2.3.0", machine) == ["ort-too-new"], "what is known of it is enough"
    assert codes("1.23.2", machine) == ["other-ort"]
    best = newest_fitting(machine)
    assert best is not None
    assert best.version == "2.7.0"


@pytest.mark.parametrize(
    ("version", "bounds"),
    [("2.0.0", ">=1.24.2,<1.28"), ("2.2.0", "==1.24.4"), ("2.3.0", ">=1.24.2,<1.28"), ("2.7.0", ">=1.24.2")],
)
def test_the_version_bounds_of_onnxruntime_are_those_that_work_with_the_release(version: str, bounds: str) -> None:
    assert ort_bounds(only(version, "win_arm64")) == bounds


# --- general properties ----------------------------------------------------------------------------

platforms = st.sampled_from(list(PLATFORM_MACHINES))
systems = st.none() | st.builds("2.{}.{}".format, st.integers(20, 60), st.integers(0, 50)) | st.just("2.40")
pythons = st.none() | st.tuples(st.just(3), st.integers(8, 16))
chips = st.sampled_from([None, 68, 69, 73, 75, 79, 81, 85])
orts = st.sampled_from([None, "1.22.1", "1.23.2", "1.24.4", "1.27.0", "1.31.1", "1.32.0", "1.40.0"])


@st.composite
def machines(draw: st.DrawFn) -> HostMachine:
    platform: Platform = draw(platforms)
    computer = draw(st.sampled_from(["ARM64", "x64"])) if platform == "win_amd64" else PLATFORM_MACHINES[platform]
    return HostMachine(platform, computer, draw(pythons), draw(systems), draw(chips), draw(orts))


@settings(deadline=None)
@given(machines())
def test_a_recommended_release_never_breaks_a_rule(machine: HostMachine) -> None:
    best = newest_fitting(machine)
    if best is None:
        return
    assert machine.python is None or best.wheel_for(machine.python) is not None
    if machine.has_npu:
        assert machine.hexagon is None or machine.hexagon in best.stubs
        assert (
            machine.system_sdk is None or best.qnn_sdk is None or not sdk_is_newer(best.qnn_sdk, machine.system_sdk)
        )
    else:
        assert best.simulator_set is not None
    assert machine.ort is None or satisfies(machine.ort, best.ort_requirement or ">=0")


@settings(deadline=None)
@given(machines())
def test_a_judgement_is_complete_sorted_and_has_a_reason_for_every_refusal(machine: HostMachine) -> None:
    judged = judge(machine)
    ranks = [("works", "doubtful", "refused").index(one.verdict) for one in judged]
    assert ranks == sorted(ranks)
    for left, right in itertools.pairwise(judged):
        if left.verdict == right.verdict:
            assert version_key(left.release.version) > version_key(right.release.version)
    for one in judged:
        assert one.verdict == "works" or one.reasons
        assert all(reason.text and not reason.text.endswith(".") for reason in one.reasons)


@settings(deadline=None)
@given(st.integers(20, 55), pythons, chips)
def test_a_newer_driver_never_excludes_a_release(
    minor: int, python: tuple[int, int] | None, chip: int | None
) -> None:
    def usable(system: str) -> set[str]:
        machine = HostMachine("win_arm64", "ARM64", python, system, chip)
        return {one.release.version for one in judge(machine) if one.verdict != "refused"}

    assert usable(f"2.{minor}.0") <= usable(f"2.{minor + 1}.0")


def test_lists_of_python_versions_are_abbreviated() -> None:
    assert pythons_text(["cp311", "cp312", "cp313", "cp314"]) == "3.11 to 3.14"
    assert pythons_text(["cp38", "cp311"]) == "3.8, 3.11"
    assert pythons_text(["cp313"]) == "3.13"


@pytest.mark.process
def test_the_table_works_without_numpy_and_onnxruntime() -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "for name in ('numpy', 'onnxruntime', 'onnx', 'msgpack', 'psutil'): sys.modules[name] = None\n"
        "from qnnbridge_tools.versions.fitness import HostMachine, newest_fitting\n"
        "machine = HostMachine('win_arm64', 'ARM64', (3, 13), system_sdk='2.40', hexagon=73)\n"
        "print(newest_fitting(machine).version)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == "1.23.2", told.stderr
