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
            ("doctor --model model.onnx", "also check a model"),
            ('doctor --explain "exit code 127"', "explain an error or a log line"),
        ),
    ),
    "pull": Guide(
        "pull.md",
        (
            ("pull OWNER/NAME", "download the model of a repository that fits this computer best"),
            ("pull OWNER/NAME@v1.0 --file onnx/model.onnx", "download one file of a revision"),
            ("pull OWNER/NAME --output folder --offline", "use only files that were downloaded before"),
        ),
    ),
    "models": Guide(
        "pull.md",
        (
            ("models", "list the models that were pulled"),
            ("models show OWNER/NAME", "show the origin and the files of a model"),
            ("models remove OWNER/NAME", "remove a model"),
        ),
    ),
    "run": Guide(
        "index.md",
        (
            ("run model.onnx --random", "run a model once with made-up inputs"),
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
            ("bench --quick", "measure the most important figures, in a minute"),
            ("bench --model model.onnx --dim batch=1", "measure your model, with and without the bridge"),
            ("bench --html report.html", "write a page"),
        ),
    ),
    "chat": Guide(
        "genai.md",
        (
            ("chat folder", "talk to the model in a folder of onnxruntime-genai"),
            ('chat folder --system "Answer briefly."', "with a system message"),
            ("chat folder --temperature 0", "get the same answer each time"),
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
            ("report --output - --quick", "print the report, without starting a host"),
            ("report --model model.onnx --overwrite", "also describe a model, and replace an existing report"),
        ),
    ),
    "explain": Guide(
        "errors.md",
        (
            ("explain 127", "explain an exit code"),
            ("explain 0xC0000005", "explain an exit code of Windows, in hexadecimal"),
            ("explain -11 --json", "print a JSON document"),
        ),
    ),
    "inspect": Guide(
        "compiled-models.md",
        (
            ("inspect model.onnx", "show inputs, outputs, operators and weights"),
            ("inspect compiled.onnx --soc-model 60", "check whether a compiled model can run on a chip"),
            ("inspect compiled.onnx --load", "also load the model"),
        ),
    ),
    "wrap": Guide(
        "compiled-models.md",
        (
            ("wrap model.bin -o model.onnx", "write a model around a context binary"),
            ("wrap model.bin -o model.onnx --float-io", "give the model float inputs and outputs"),
            ("wrap model.bin -o model.onnx --graph decoder", "wrap one graph of the binary"),
        ),
    ),
    "analyze": Guide(
        "analyze.md",
        (
            ("analyze model.onnx", "show what runs on the NPU, and what does not"),
            ("analyze model.onnx --dim batch=1 --html report.html", "set a dimension, and write a page"),
            ("analyze model.onnx --offline", "apply only the rules, without a host"),
        ),
    ),
    "fix": Guide(
        "fix.md",
        (
            ("fix model.onnx -o fixed.onnx", "rewrite the operators that QNN rejects"),
            ("fix model.onnx -o fixed.onnx --dim batch=1", "also set a free dimension"),
            ("fix --list", "show all rewrites"),
        ),
    ),
    "optimize": Guide(
        "model-tools.md",
        (
            ("optimize model.onnx -o smaller.onnx", "fold constants and fuse nodes"),
            ("optimize model.onnx -o smaller.onnx --level basic", "use no operators of ONNX Runtime's own"),
            ("optimize model.onnx -o smaller.onnx --dim batch=1", "set a free dimension"),
        ),
    ),
    "quantize": Guide(
        "model-tools.md",
        (
            (
                "quantize model.onnx -o quantized.onnx --calibration samples",
                "calibrate with a folder of real samples",
            ),
            ("quantize model.onnx -o quantized.onnx --random 16", "calibrate with random samples, for a first try"),
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
            ("evaluate model.onnx --input samples --quantized quantized.onnx", "also compare a quantised model"),
            ("evaluate model.onnx --input samples --expected truth", "compare with the right results"),
        ),
    ),
    "verify": Guide(
        "verify.md",
        (
            ("verify model.onnx", "compare QNN with the CPU on random inputs"),
            ("verify model.onnx --input inputs.npz", "compare on your own inputs"),
            ("verify model.onnx --soc-model 60 --dim batch=1", "compare for another chip, with a fixed size"),
        ),
    ),
    "prepare": Guide(
        "prepare.md",
        (
            ("prepare model.onnx -o shipped --soc-model 60", "prepare a model for one chip"),
            ("prepare model.onnx -o shipped --soc-model 60 --soc-model 88", "prepare a model for two chips"),
            ("prepare model.onnx -o shipped --quantize --calibration samples", "also quantise the model"),
        ),
    ),
    "profile": Guide(
        "profile.md",
        (
            ("profile model.onnx", "measure each part and operator"),
            ("profile model.onnx --input inputs.npz --runs 50", "measure 50 runs with your inputs"),
            ("profile model.onnx --html report.html", "write a page"),
        ),
    ),
    "versions": Guide(
        "versions.md",
        (
            ("versions", "list all releases, and which fit this machine"),
            ('versions --chip "X Elite" --working', "list releases that work on a chip"),
            ("versions --python 3.12 --platform win_arm64", "list releases for another Python"),
        ),
    ),
    "serve": Guide(
        "serve.md",
        (
            ("serve --model detector=model.onnx", "serve one model, under the name detector"),
            ("serve --llm assistant=folder", "serve chat completions with OpenAI's interface"),
            ("serve --models folder --http 127.0.0.1:9000", "serve a folder of models, on another port"),
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
            ("setup-host", "do the same as qnnbridge setup"),
            ("setup-host --dry-run", "only print the steps"),
            ("setup-host --yes --config", "do not ask, and save the host's Python in the configuration"),
        ),
    ),
    "top": Guide(
        "daemon.md",
        (
            ("top", "watch the daemon; q ends it"),
            ("top --interval 5", "update every five seconds"),
            ("top --count 1 --json", "print the figures once, as a JSON document"),
        ),
    ),
    "host": Guide(
        "daemon.md",
        (
            ("host start", "start the daemon"),
            ("host status", "show the daemon's clients, models and calls"),
            ("host logs --follow", "follow the daemon's log"),
        ),
    ),
    "cache": Guide(
        "cache.md",
        (
            ("cache list", "list the entries"),
            ("cache verify", "compare every byte with its hash"),
            ("cache prune --unused-days 30", "remove entries that were not used for a month"),
        ),
    ),
    "crashes": Guide(
        "errors.md",
        (
            ("crashes", "list the reports"),
            ("crashes show", "show the newest report"),
            ("crashes path", "print the folder of the reports"),
        ),
    ),
    "quarantine": Guide(
        "errors.md",
        (
            ("quarantine", "list models that kept killing hosts"),
            ("quarantine clear --all", "allow all of these models again"),
            ("quarantine list --json", "print a JSON document"),
        ),
    ),
}
