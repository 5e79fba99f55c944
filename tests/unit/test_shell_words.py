"""Arguments of suggested commands, parsed as the shells of Windows parse them; `sh` itself parses those for POSIX."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tests import needs

from qnnbridge_protocol import shell
from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionSpec

COMMAND = [
    r"C:\my hosts\python.exe",
    *("-m", "pip", "install", "onnxruntime>=1.24.2,<1.28", "a & b", "it's", "it\u2019s", "q[h]==1", "a&b\\"),
]
HOSTILE = [
    *("", " ", "a b", "model.onnx", "x&calc.onnx", "x|calc", "x;calc", "(calc)", "$(calc).onnx", "`calc`", "@{a}"),
    *(
        "a^b",
        "a,b",
        "#x",
        "~",
        "it's",
        "a\u2019;calc;\u2019",
        "a\u201d;calc;\u201d",
        'a"&calc&"',
        "C:\\a b\\",
        "\\\\a b\\c",
    ),
    *('a\\"&calc', "%PATH%", "größe=8", "C:\\PROGRA~1\\x.onnx"),
]


def command_prompt(line: str) -> str:
    """Return the line without its quoted parts: the Command Prompt interprets operators in the rest."""
    return "".join(line.split('"')[::2])


def program(line: str) -> list[str]:
    """Return the arguments that a Windows program finds in its command line (rules of the C runtime since 2008)."""
    words: list[str] = []
    at, inside, word = 0, False, None
    while at < len(line):
        slashes = len(line[at:]) - len(line[at:].lstrip("\\"))
        if slashes and line[at + slashes : at + slashes + 1] == '"':
            word = (word or "") + "\\" * (slashes // 2)
            at += slashes
            if slashes % 2:
                word, at = word + '"', at + 1
            continue
        if line[at] == '"':
            word = word or ""
            if inside and line[at + 1 : at + 2] == '"':
                word, at = word + '"', at + 1
            else:
                inside = not inside
        elif line[at] == " " and not inside:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + line[at]
        at += 1
    return [*words, word] if word is not None else words


def powershell(line: str) -> list[str]:
    """Return the words of a line of PowerShell. Fails for characters that PowerShell would interpret."""
    words: list[str] = []
    at, quote, word = 0, "", None
    doubles, singles = '"\u201c\u201d\u201e', "'\u2018\u2019\u201a\u201b"
    while at < len(line):
        char, following = line[at], line[at + 1 : at + 2]
        if quote:
            if char in quote and following and following in quote:
                word, at = (word or "") + following, at + 1
            elif char in quote:
                quote = ""
            elif quote == doubles and char == "`":
                word, at = (word or "") + following, at + 1
            else:
                assert quote == singles or char != "$"
                word = (word or "") + char
        elif char in doubles + singles:
            quote, word = doubles if char in doubles else singles, word or ""
        elif char == " ":
            if word is not None:
                words.append(word)
            word = None
        else:
            assert char.isalnum() or char in "_.:=/\\+-~", char
            word = (word or "") + char
        at += 1
    assert not quote
    return [*words, word] if word is not None else words


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    # Only for this module: pathlib and pytest use `os.name`, too.
    monkeypatch.setattr(shell, "os", types.SimpleNamespace(name="nt", fspath=os.fspath))


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize("text", HOSTILE)
def test_an_argument_is_literal_text_in_both_shells_of_windows(text: str) -> None:
    word = shell.shell_word(text)
    assert not set(command_prompt(word)) & set("<>&|^()")
    # The Command Prompt does not know PowerShell's escape character.
    assert [one.replace("`", "") for one in program(f"x {word}")] == ["x", text.replace("`", "")]
    if '"' not in text:
        # PowerShell passes another command line to programs, so doubled backslashes at the end do not help.
        (found,) = powershell(word)
        assert found.rstrip("\\") == text.rstrip("\\")


def test_a_command_for_a_model_contains_its_file() -> None:
    assert shell.model_command("verify", "m.onnx", "", "--dim seq=8") == "qnnbridge verify m.onnx --dim seq=8"
    path, fixed = "my models/it's.onnx", "it's_fixed.onnx"
    assert shell.fix_command(Path(path), "--only rank") == (
        f"qnnbridge fix {shell.shell_word(path)} -o {shell.shell_word(fixed)} --only rank"
    )
    for none in (None, ""):
        assert shell.fix_command(none) == "qnnbridge fix MODEL -o model_fixed.onnx (MODEL: the model in a file)"


@pytest.mark.usefixtures("windows")
def test_an_ordinary_argument_on_windows_is_not_quoted() -> None:
    for word in (r"C:\models\yolo.onnx", r"\\server\share\x.onnx", "--dim", "größe=8", r"C:\PROGRA~1\x.onnx"):
        assert shell.shell_word(word) == word


def test_the_command_prompt_sees_no_operators_outside_of_quotes() -> None:
    line = shell.command_prompt_line(COMMAND)
    assert line.startswith('"C:\\my hosts\\python.exe" -m pip install "onnxruntime>=1.24.2,<1.28" "a & b" ')
    assert not set(command_prompt(line)) & set("<>&|^")
    assert program(line) == COMMAND


def test_powershell_runs_a_quoted_program_and_treats_the_rest_literally() -> None:
    line = shell.powershell_line(COMMAND)
    assert line.startswith(
        "& 'C:\\my hosts\\python.exe' -m pip install 'onnxruntime>=1.24.2,<1.28' 'a & b' 'it''s' "
    )
    assert powershell(line.removeprefix("& ")) == COMMAND
    assert shell.powershell_line([r"C:\python.exe", "-m", "venv"]) == r"C:\python.exe -m venv"


@pytest.mark.usefixtures("windows")
def test_a_program_with_a_space_in_its_path_can_be_pasted() -> None:
    assert shell.command_line([r"C:\Program Files\python.exe", "-m", "pip"]) == (
        r"& 'C:\Program Files\python.exe' -m pip"
    )
    assert shell.command_line([r"C:\py\python.exe", "install", "a[b]"]) == r'C:\py\python.exe install "a[b]"'


@pytest.mark.process
@needs.posix
@pytest.mark.parametrize("text", HOSTILE)
def test_an_argument_is_literal_text_in_sh(text: str) -> None:
    line = shell.command_line(["printf", "%s", text])
    assert line.endswith(shell.shell_word(text))
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True)
    assert os.fsdecode(done.stdout) == text


def test_commands_contain_the_sizes_and_the_chip_of_the_session() -> None:
    model = shell.ModelInCommands("m.onnx", {"n": 4, "a b": 2}, "60")
    sizes = f"--dim n=4 --dim {shell.shell_word('a b=2')}"
    assert model.examine("verify") == f"qnnbridge verify m.onnx {sizes} --soc-model 60"
    assert model.fix() == f"qnnbridge fix m.onnx -o m_fixed.onnx {sizes}"
    # With other rewrites only, `fix` would refuse the sizes.
    assert model.fix("rank") == f"qnnbridge fix m.onnx -o m_fixed.onnx {sizes} --only fixed-shapes --only rank"
    assert shell.ModelInCommands("m.onnx").fix("rank") == "qnnbridge fix m.onnx -o m_fixed.onnx --only rank"


def test_a_session_without_sizes_and_chip_gives_plain_commands() -> None:
    spec = SessionSpec("m.onnx", providers=(ProviderSpec(QNN, {"htp_performance_mode": "burst"}),))
    assert spec.in_commands("m.onnx") == shell.ModelInCommands("m.onnx")
    chosen = SessionSpec("m.onnx", providers=(ProviderSpec(QNN, {"soc_model": "60"}),))
    assert chosen.in_commands("m.onnx").examine("analyze") == "qnnbridge analyze m.onnx --soc-model 60"


@pytest.mark.process
def test_a_model_refers_to_its_weights_by_name_alone_after_the_suggested_command(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    weight = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "../w.bin"), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    graph = onnx.helper.make_graph([], "g", [], [onnx.helper.make_tensor_value_info("w", 1, [4])], [weight])
    path = tmp_path / "my model.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    (tmp_path / "w.bin").write_bytes(b"\0\0\x80\x3f" * 4)
    command = shell.beside_command(path).replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, timeout=120)
    assert onnx.load(path).graph.initializer[0].raw_data == (tmp_path / "w.bin").read_bytes()
