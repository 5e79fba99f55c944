"""What `--help` shows below each command: examples that work when they are pasted, and the page to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Guide(NamedTuple):
    """The end of one command's help.

    Args:
        page: below `docs/`.
        examples: arguments of `qnnbridge`, as cmd.exe, PowerShell and sh read them, with what they do.
    """

    page: str
    examples: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """As it is shown. ``\\b`` keeps click from filling the paragraph."""
        lines = [line for arguments, what in self.examples for line in (f"  # {what}", f"  qnnbridge {arguments}")]
        return "\n".join(["\b", "Examples:", *lines, "", f"More: docs/{self.page}"])


GUIDES: Final[Mapping[str, Guide]] = {
    "demo": Guide(
        "index.md",
        (
            ("demo", "a trained model that comes with qnnbridge, on QNN and on the CPU"),
            ("demo --json", "the same for a program to read"),
            ("demo --timeout 120", "give a slow machine two minutes for each call"),
        ),
    ),
    "doctor": Guide(
        "doctor.md",
        (
            ("doctor", "check this machine"),
            ("doctor --model model.onnx", "check a model as well"),
            ('doctor --explain "exit code 127"', "say what an error or a log line means"),
        ),
    ),
    "pull": Guide(
        "pull.md",
        (
            ("pull OWNER/NAME", "the model of a repository that suits this computer"),
            ("pull OWNER/NAME@v1.0 --file onnx/model.onnx", "one file of a revision"),
            ("pull OWNER/NAME --output folder --offline", "what is there already, without a network"),
        ),
    ),
    "models": Guide(
        "pull.md",
        (
            ("models", "the models that were pulled"),
            ("models show OWNER/NAME", "where one came from, and its files"),
            ("models remove OWNER/NAME", "remove it"),
        ),
    ),
    "run": Guide(
        "index.md",
        (
            ("run model.onnx --random", "run it once with made-up inputs"),
            ("run model.onnx --input inputs.npz --output results", "use real inputs and keep the outputs"),
            ("run model.onnx --random --dim batch=1 --repeat 20", "set a free dimension, and measure"),
        ),
    ),
    "exec": Guide(
        "drop-in.md",
        (
            ("exec program.py --its-option", "run a program with its own arguments"),
            ("exec -m package.module", "run a module"),
            ("exec --report program.py", "say afterwards what ran where"),
        ),
    ),
    "compile": Guide(
        "compiling.md",
        (
            ("compile model.onnx -o compiled.onnx --soc-model 60", "compile for one chip"),
            ("compile model.onnx -o compiled.onnx --dim batch=1", "set a free dimension"),
            ("compile encoder.onnx decoder.onnx -o compiled/ --share-weights", "compile models that share weights"),
        ),
    ),
    "bench": Guide(
        "performance.md",
        (
            ("bench --quick", "the most important figures, in a minute"),
            ("bench --model model.onnx --dim batch=1", "your model, with and without the bridge"),
            ("bench --html report.html", "write a page"),
        ),
    ),
    "chat": Guide(
        "genai.md",
        (
            ("chat folder", "talk to the model in a folder of onnxruntime-genai"),
            ('chat folder --system "Answer briefly."', "with a system message"),
            ("chat folder --temperature 0", "the same answer each time"),
        ),
    ),
    "transcribe": Guide(
        "speech.md",
        (
            ("transcribe talk.wav --model whisper", "print the text"),
            ("transcribe talk.wav --model whisper --format srt -o talk.srt", "write subtitles"),
            ("transcribe talk.wav --model whisper --task translate", "translate into English"),
        ),
    ),
    "report": Guide(
        "report.md",
        (
            ("report", "write qnnbridge-report.txt"),
            ("report --output - --quick", "print it, without starting a host"),
            ("report --model model.onnx --overwrite", "describe a model as well, and replace the last report"),
        ),
    ),
    "explain": Guide(
        "errors.md",
        (
            ("explain 127", "an exit code"),
            ("explain 0xC0000005", "the same of Windows, as it is shown there"),
            ("explain -11 --json", "for a program to read"),
        ),
    ),
    "inspect": Guide(
        "compiled-models.md",
        (
            ("inspect model.onnx", "inputs, outputs, operators, weights"),
            ("inspect compiled.onnx --soc-model 60", "whether a compiled model can run on a chip"),
            ("inspect compiled.onnx --load", "load it as well"),
        ),
    ),
    "wrap": Guide(
        "compiled-models.md",
        (
            ("wrap model.bin -o model.onnx", "a model around a context binary"),
            ("wrap model.bin -o model.onnx --float-io", "with inputs and outputs in float"),
            ("wrap model.bin -o model.onnx --graph decoder", "one of its graphs"),
        ),
    ),
    "analyze": Guide(
        "analyze.md",
        (
            ("analyze model.onnx", "what runs on the NPU, and what does not"),
            ("analyze model.onnx --dim batch=1 --html report.html", "set a dimension, and write a page"),
            ("analyze model.onnx --offline", "by the rules alone, without a host"),
        ),
    ),
    "fix": Guide(
        "fix.md",
        (
            ("fix model.onnx -o fixed.onnx", "rewrite what QNN does not take"),
            ("fix model.onnx -o fixed.onnx --dim batch=1", "fix the sizes as well"),
            ("fix --list", "show all rewrites"),
        ),
    ),
    "optimize": Guide(
        "model-tools.md",
        (
            ("optimize model.onnx -o smaller.onnx", "fold constants and fuse nodes"),
            ("optimize model.onnx -o smaller.onnx --level basic", "without operators of ONNX Runtime's own"),
            ("optimize model.onnx -o smaller.onnx --dim batch=1", "set a free dimension"),
        ),
    ),
    "quantize": Guide(
        "model-tools.md",
        (
            ("quantize model.onnx -o quantized.onnx --calibration samples", "with a folder of real samples"),
            ("quantize model.onnx -o quantized.onnx --random 16", "with made-up ones, for a first look"),
            (
                "quantize model.onnx -o quantized.onnx --calibration samples --target-snr 40",
                "keep as many nodes wide as 40 dB take",
            ),
        ),
    ),
    "evaluate": Guide(
        "model-tools.md",
        (
            ("evaluate model.onnx --input samples", "QNN beside the CPU, over samples"),
            ("evaluate model.onnx --input samples --quantized quantized.onnx", "a quantised model as well"),
            ("evaluate model.onnx --input samples --expected truth", "beside what is right"),
        ),
    ),
    "verify": Guide(
        "verify.md",
        (
            ("verify model.onnx", "made-up inputs of several kinds"),
            ("verify model.onnx --input inputs.npz", "your own inputs"),
            ("verify model.onnx --soc-model 60 --dim batch=1", "as for another chip, with a fixed size"),
        ),
    ),
    "prepare": Guide(
        "prepare.md",
        (
            ("prepare model.onnx -o shipped --soc-model 60", "for one chip"),
            ("prepare model.onnx -o shipped --soc-model 60 --soc-model 88", "for two"),
            ("prepare model.onnx -o shipped --quantize --calibration samples", "quantised"),
        ),
    ),
    "profile": Guide(
        "profile.md",
        (
            ("profile model.onnx", "each part and operator"),
            ("profile model.onnx --input inputs.npz --runs 50", "over 50 runs of your inputs"),
            ("profile model.onnx --html report.html", "write a page"),
        ),
    ),
    "versions": Guide(
        "versions.md",
        (
            ("versions", "all releases, and which fit this machine"),
            ('versions --chip "X Elite" --working', "those that work on a chip"),
            ("versions --python 3.12 --platform win_arm64", "those with a wheel for another Python"),
        ),
    ),
    "serve": Guide(
        "serve.md",
        (
            ("serve --model detector=model.onnx", "one model, under the name detector"),
            ("serve --llm assistant=folder", "chat completions as OpenAI has them"),
            ("serve --models folder --http 127.0.0.1:9000", "a folder of models, on another port"),
        ),
    ),
    "setup": Guide(
        "setup-host.md",
        (
            ("setup", "ask, then download what is missing and make the host"),
            ("setup --dry-run", "only say what would be done"),
            ("setup --repair", "make the host again if it is not healthy"),
        ),
    ),
    "setup-host": Guide(
        "setup-host.md",
        (
            ("setup-host", "the same as qnnbridge setup"),
            ("setup-host --dry-run", "only say what would be done"),
            ("setup-host --yes --config", "do not ask, and remember the host's Python"),
        ),
    ),
    "top": Guide(
        "daemon.md",
        (
            ("top", "watch; q ends it"),
            ("top --interval 5", "every five seconds"),
            ("top --count 1 --json", "one look, for a program to read"),
        ),
    ),
    "host": Guide(
        "daemon.md",
        (
            ("host start", "start the daemon"),
            ("host status", "what it does"),
            ("host logs --follow", "its log"),
        ),
    ),
    "cache": Guide(
        "cache.md",
        (
            ("cache list", "what is in it"),
            ("cache verify", "check every byte"),
            ("cache prune --unused-days 30", "remove what was not used for a month"),
        ),
    ),
    "crashes": Guide(
        "errors.md",
        (
            ("crashes", "the reports"),
            ("crashes show", "the newest"),
            ("crashes path", "the folder in which they are"),
        ),
    ),
    "quarantine": Guide(
        "errors.md",
        (
            ("quarantine", "which models kept killing hosts"),
            ("quarantine clear --all", "try them again"),
            ("quarantine list --json", "for a program to read"),
        ),
    ),
}
