"""The end of each command's `--help`: examples that work when they are pasted, and the page to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Guide(NamedTuple):
    """The text at the end of a command's help.

    Args:
        page: the path below `docs/`.
        examples: arguments of `qnnbridge` that work the same in cmd.exe, PowerShell and sh, with their effect.
    """

    page: str
    examples: tuple[tuple[str, str], ...]

    def text(self) -> str:
        """Return the whole text. ``\\b`` keeps click from rewrapping the paragraph."""
        lines = [line for arguments, what in self.examples for line in (f"  # {what}", f"  qnnbridge {arguments}")]
        return "\n".join(["\b", "Examples:", *lines, "", f"More: docs/{self.page}"])


GUIDES: Final[Mapping[str, Guide]] = {
    "demo": Guide(
        "index.md",
        (
            ("demo", "a trained model that comes with qnnbridge, on QNN and on the CPU"),
            ("demo --json", "the same as a JSON document"),
            ("demo --timeout 120", "allow a slow machine two minutes for each call"),
        ),
    ),
    "doctor": Guide(
        "doctor.md",
        (
            ("doctor", "check this machine"),
            ("doctor --model model.onnx", "check a model as well"),
            ('doctor --explain "exit code 127"', "explain an error or a log line"),
        ),
    ),
    "pull": Guide(
        "pull.md",
        (
            ("pull OWNER/NAME", "the model in a repository that fits this computer best"),
            ("pull OWNER/NAME@v1.0 --file onnx/model.onnx", "one file of a revision"),
            ("pull OWNER/NAME --output folder --offline", "only files that were downloaded before"),
        ),
    ),
    "models": Guide(
        "pull.md",
        (
            ("models", "the models that were pulled"),
            ("models show OWNER/NAME", "the origin and the files of a model"),
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
            ("exec --report program.py", "print afterwards where each model ran"),
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
            ("report --model model.onnx --overwrite", "also describe a model, and replace an existing report"),
        ),
    ),
    "explain": Guide(
        "errors.md",
        (
            ("explain 127", "an exit code"),
            ("explain 0xC0000005", "an exit code of Windows, in hexadecimal"),
            ("explain -11 --json", "as a JSON document"),
        ),
    ),
    "inspect": Guide(
        "compiled-models.md",
        (
            ("inspect model.onnx", "inputs, outputs, operators, weights"),
            ("inspect compiled.onnx --soc-model 60", "whether a compiled model can run on a chip"),
            ("inspect compiled.onnx --load", "load the model as well"),
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
            ("analyze model.onnx --offline", "only by the rules, without a host"),
        ),
    ),
    "fix": Guide(
        "fix.md",
        (
            ("fix model.onnx -o fixed.onnx", "rewrite the operators that QNN rejects"),
            ("fix model.onnx -o fixed.onnx --dim batch=1", "fix the sizes as well"),
            ("fix --list", "show all rewrites"),
        ),
    ),
    "optimize": Guide(
        "model-tools.md",
        (
            ("optimize model.onnx -o smaller.onnx", "fold constants and fuse nodes"),
            ("optimize model.onnx -o smaller.onnx --level basic", "without ONNX Runtime's own operators"),
            ("optimize model.onnx -o smaller.onnx --dim batch=1", "set a free dimension"),
        ),
    ),
    "quantize": Guide(
        "model-tools.md",
        (
            ("quantize model.onnx -o quantized.onnx --calibration samples", "with a folder of real samples"),
            ("quantize model.onnx -o quantized.onnx --random 16", "with random samples, for a first try"),
            (
                "quantize model.onnx -o quantized.onnx --calibration samples --target-snr 40",
                "keep nodes at 16 bits or in float until the SNR is 40 dB",
            ),
        ),
    ),
    "evaluate": Guide(
        "model-tools.md",
        (
            ("evaluate model.onnx --input samples", "compare QNN with the CPU, over samples"),
            ("evaluate model.onnx --input samples --quantized quantized.onnx", "a quantised model as well"),
            ("evaluate model.onnx --input samples --expected truth", "compare with the right results"),
        ),
    ),
    "verify": Guide(
        "verify.md",
        (
            ("verify model.onnx", "with random inputs of several kinds"),
            ("verify model.onnx --input inputs.npz", "with your own inputs"),
            ("verify model.onnx --soc-model 60 --dim batch=1", "for another chip, with a fixed size"),
        ),
    ),
    "prepare": Guide(
        "prepare.md",
        (
            ("prepare model.onnx -o shipped --soc-model 60", "for one chip"),
            ("prepare model.onnx -o shipped --soc-model 60 --soc-model 88", "for two chips"),
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
            ("setup", "ask, then download the missing packages and create the host"),
            ("setup --dry-run", "only print the steps"),
            ("setup --repair", "create the host again if it is not healthy"),
        ),
    ),
    "setup-host": Guide(
        "setup-host.md",
        (
            ("setup-host", "the same as qnnbridge setup"),
            ("setup-host --dry-run", "only print the steps"),
            ("setup-host --yes --config", "do not ask, and save the host's Python in the configuration"),
        ),
    ),
    "top": Guide(
        "daemon.md",
        (
            ("top", "watch the daemon; q ends it"),
            ("top --interval 5", "update every five seconds"),
            ("top --count 1 --json", "once, as a JSON document"),
        ),
    ),
    "host": Guide(
        "daemon.md",
        (
            ("host start", "start the daemon"),
            ("host status", "show its clients, models and calls"),
            ("host logs --follow", "follow its log"),
        ),
    ),
    "cache": Guide(
        "cache.md",
        (
            ("cache list", "list the entries"),
            ("cache verify", "check every byte"),
            ("cache prune --unused-days 30", "remove entries that were not used for a month"),
        ),
    ),
    "crashes": Guide(
        "errors.md",
        (
            ("crashes", "list the reports"),
            ("crashes show", "show the newest one"),
            ("crashes path", "print the folder of the reports"),
        ),
    ),
    "quarantine": Guide(
        "errors.md",
        (
            ("quarantine", "list models that kept killing hosts"),
            ("quarantine clear --all", "try them again"),
            ("quarantine list --json", "as a JSON document"),
        ),
    ),
}
