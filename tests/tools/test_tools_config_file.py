"""`--config FILE.toml`: the same keys as the options, for `prepare`, `quantize` and `compile`; and `--bucket`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from tests.fakes.commands import qnnbridge
from typer.testing import CliRunner

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import arguments
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import Buckets, Calibration, Config, Dims, Shapes

small = typer.Typer()


@small.command("quantize")
@command
def quantize(
    *,
    model: Annotated[Path, typer.Argument(metavar="MODEL")],
    target: Annotated[Path, typer.Option("--output", "-o")],
    calibration: Calibration = (),
    dims: Dims,
    shapes: Shapes,
    buckets: Buckets,
    percentile: float = 99.0,
    per_channel: Annotated[bool | None, typer.Option("--per-channel/--per-tensor")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite")] = False,
    _config: Config = None,
) -> None:
    print(json.dumps([str(model), str(target), [str(one) for one in calibration], dims.by_name, shapes, buckets]))
    print(json.dumps([percentile, per_channel, overwrite]))


@small.command("compile")
@command
def compile_models(embed: Annotated[bool, typer.Option("--embed")] = False, _config: Config = None) -> None:
    print(embed)


def told(folder: Path, text: str, *given: str) -> Any:
    (folder / "c.toml").write_text(text, encoding="utf-8")
    return CliRunner().invoke(small, ["quantize", "--config", str(folder / "c.toml"), *given])


def test_keys_are_options_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    result = told(
        tmp_path,
        """
        dim = {batch = 1, "x:2" = 48}
        percentile = 99.5
        embed = true  # of another command
        [quantize]
        model = "m.onnx"
        output = "out/"
        calibration = ["a", "b.npz"]
        shape = {x = [1, 3, 48, 192]}
        bucket = {seq = [16, 32]}
        per-tensor = true
        overwrite = true
        [compile]
        embed = false
        """,
    )
    assert result.exit_code == 0, result.output
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first[:2] == [str(tmp_path / "m.onnx"), str(tmp_path / "out")]
    assert first[2] == [str(tmp_path / "a"), str(tmp_path / "b.npz")]
    assert first[3:] == [{"batch": 1, "x:2": 48}, {"x": [1, 3, 48, 192]}, [{"seq": 16}, {"seq": 32}]]
    assert second == [99.5, False, True]


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    result = told(tmp_path, "\ufeffpercentile = 1.0", "m", "-o", "b")
    assert json.loads(result.stdout.splitlines()[1])[0] == 1.0


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    result = told(tmp_path, 'output = "a"\npercentile = 1.0\nper-channel = true', "m", "-o", "b", "--per-tensor")
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert (first[0], first[1], second[:2]) == ("m", "b", [1.0, False])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("percentle = 1.0", 'there is no option "percentle"'),
        ("[quantize]\nembed = true", 'there is no option "embed"'),
        ('overwrite = "yes"', "true or false"),
        ("percentile = [1.0, 2.0]", "one value"),
        ("percentile = true", "a value, not a switch"),
        ('percentile = "much"', "not a valid float"),
        ("output = ", "is not a TOML file"),
        (f"seed = {'9' * 5000}", "is not a TOML file"),
        (f"seed = {'[' * 5000}", "is not a TOML file"),
        ("dim = 1979-05-27", "a list or a table"),
    ],
)
def test_mistakes_are_reported_without_a_traceback(text: str, words: str, tmp_path: Path) -> None:
    result = told(tmp_path, text, "m", "-o", "b")
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output


def test_a_similar_key_is_suggested_and_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert 'Did you mean "percentile"' in told(tmp_path, "percentle = 1.0").output
    missing = CliRunner().invoke(small, ["quantize", "--config", str(tmp_path / "no.toml"), "m", "-o", "b"])
    assert missing.exit_code == 2
    assert "There is no file" in missing.output


@pytest.mark.parametrize("command", ["prepare", "quantize", "compile"])
def test_these_commands_accept_a_configuration_file(command: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("no-such-key = 1")
    result = qnnbridge(command, "--config", tmp_path / "c.toml", "m.onnx", "-o", "x")
    assert result.returncode == 2
    assert 'there is no option "no-such-key"' in result.output


def test_buckets_are_all_combinations_of_sizes() -> None:
    assert arguments.read_buckets([]) == []
    assert arguments.read_buckets(["seq=32,16", "batch=1"]) == [{"seq": 16, "batch": 1}, {"seq": 32, "batch": 1}]
    for wrong in (["seq"], ["seq=0"], ["seq=1,a"], ["seq=1", "seq=2"], ["=1"]):
        with pytest.raises(OptionError, match="--bucket"):
            arguments.read_buckets(wrong)
    with pytest.raises(OptionError, match="more than"):
        arguments.read_buckets([f"a={','.join(map(str, range(1, 30)))}", f"b={','.join(map(str, range(1, 30)))}"])


def test_the_file_has_settings_for_the_quantize_step_of_prepare(tmp_path: Path) -> None:
    from qnnbridge_models.command_options import QuantizeSettings, settings_of_file

    class Context:
        meta: dict[str, Any]

    given = Context()
    given.meta = {}
    assert settings_of_file(given) == QuantizeSettings()
    table = {"activation-type": "uint8", "exclude": ["Softmax"], "target-snr": 30, "calibration": "x"}
    given.meta = {"qnnbridge.config": (tmp_path / "c.toml", {"quantize": table})}
    assert settings_of_file(given) == QuantizeSettings("uint8", exclude=("Softmax",), target_snr=30.0)
    table["split-outputs"] = "no"
    with pytest.raises(OptionError, match="split-outputs"):
        settings_of_file(given)
