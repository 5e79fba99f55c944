"""Why hosts die, as data: kind of fault, phase and a line on stderr -> cause and fix. Read by `crash`.

The deaths were reproduced with onnxruntime 1.31 and onnxruntime-qnn 2.7 (2.6 for mixed versions), on Linux and,
for the exit codes, on Windows; each rule has a test with real output. Faults are the words of `exit_codes`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from qnnbridge._diagnosis.log_rules import ONE_SET, PROOF, STRONG, SYMPTOM

START: Final = ("starting", "importing", "registering")
MODEL: Final = ("creating", "compiling", "running")


@dataclasses.dataclass(frozen=True, slots=True)
class DeathRule:
    """Fits if all that is given fits: one of the faults, one of the phases, an operation under way, a line.

    faults: words of `exit_codes`, with blanks between.
    line: searched in every line of stderr; the last match counts, its named groups can be used in the sentences.
        A pattern that begins with ``.*`` must be anchored, or a log of long lines takes seconds.
    curable: whether a restart may help; ``None`` leaves it to the exit code.
    """

    cause: str
    fix: str
    weight: int = PROOF
    _: dataclasses.KW_ONLY
    faults: str = ""
    phases: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    line: str | None = None
    # Only if nothing on stderr names the fault (no C++ exception's name, no traceback; at the start, nothing).
    silent: bool = False
    curable: bool | None = None
    # Whether QNN may have had a part in what was under way; ``None``: no matter.
    qnn: bool | None = None
    # Whether the kernel's out-of-memory killer struck while it lived; ``None``: not known. Empty: no matter.
    memory: tuple[bool | None, ...] = ()
    # Where the host has QNN from; empty: no matter.
    source: str = ""


_REBUILD = "Compile the model again with this onnxruntime-qnn; copy the .onnx and the .bin file together."
_REINSTALL = "Reinstall onnxruntime and onnxruntime-qnn in the host's interpreter."
_INSTALL = 'Run in the host\'s interpreter: python -m pip install "qnnbridge[host]"'
_NAME_PYTHON = (
    "Name the full path of a Python interpreter that has qnnbridge[host] installed; "
    "`qnnbridge setup-host` makes one."
)
_CPU = "Run this model on the CPU provider meanwhile, and report it to onnxruntime-qnn with the crash report."
_ABORT = "abort cpp-exception"
# "unknown": an NTSTATUS error or a signal that the tables of exit codes do not name.
_CRASH = "access-violation illegal-instruction stack-overflow float unknown"

# fmt: off
# Each rule that fits gives a diagnosis. `crash.diagnose` puts the heaviest first and keeps the order of this table
# among equals, so the order counts between rules of one weight that fit the same death.
DEATH_RULES: Final[tuple[DeathRule, ...]] = (
    # --- the model, or what was asked of it ---
    DeathRule("A tensor of the model has a dimension of size 0: QNN divides by it.",
        "Find the dimension of size 0 (also behind Slice or Reshape) and give it a size, or cut that part out.",
        faults="divide-by-zero", phases=MODEL, qnn=True),
    DeathRule(
        "An integer division failed on the CPU: the smallest integer there is was divided by -1, or one by 0.",
        "Look for both among the inputs of Div and Mod of integers, and keep them out.", STRONG,
        faults="divide-by-zero", phases=MODEL, qnn=False),
    DeathRule("A dynamic option (set_ep_dynamic_options) has a value that QNN cannot read.",
        "Correct the value: kvcache_rewind wants a number.", faults=_ABORT,
        ops=("session.set_ep_dynamic_options",)),
    DeathRule(
        "An option that must be a number is none ({function} failed): a run option such as "
        "qnn.rpc_control_latency, or a provider option.", "Correct the option.", faults=_ABORT,
        line=r"(?:what\(\):|exception of type).*\b(?P<function>sto(?:i|l|ll|ul|ull|f|d))\b"),
    DeathRule("The .bin file does not belong to this .onnx file: it was made from another model.", _REBUILD,
        faults=_ABORT, line=r"what\(\):\s+(?:Tensor|Input) name not found"),
    DeathRule("The context binary is damaged ({what}).", _REBUILD, faults=_ABORT, phases=MODEL, qnn=True,
        line=r"(?P<what>std::out_of_range|std::length_error)"),
    DeathRule("Libraries of two QNN versions were loaded into one process.", ONE_SET, faults=_ABORT,
        line=r"duplicate op key"),
    DeathRule(
        "On Windows this death leaves no message. A run or provider option that should be a number and is none "
        "looks exactly like this; a context binary of another model does too.",
        "Check the options; " + _REBUILD[0].lower() + _REBUILD[1:], SYMPTOM, faults=_ABORT, phases=MODEL,
        qnn=True, silent=True),
    DeathRule(
        # One more than the rules for a crash of QNN below, which fit this fault as well.
        "A native library used an instruction that the processor, or the emulator that runs it, does not have. "
        "Processor: {processor}.",
        "Update the emulator or the operating system; if there is none newer, use another version of onnxruntime "
        "in the host's Python.", SYMPTOM + 1, faults="illegal-instruction"),
    DeathRule(
        "The provider from the catalogue of Windows crashed when a session was made. onnxruntime-windowsml is "
        "known to die so with every model (microsoft/WindowsML#22), where plain onnxruntime works with the same "
        "provider.",
        "In the host's interpreter, if onnxruntime-windowsml is installed there: python -m pip uninstall -y "
        "onnxruntime-windowsml, then python -m pip install --force-reinstall onnxruntime. Otherwise take QNN from "
        "its wheel (onnxruntime-qnn, QNNBRIDGE_ENGINE=wheel).",
        SYMPTOM + 1, faults="access-violation", phases=("creating", "compiling"), qnn=True, source="windowsml"),
    DeathRule(
        "QNN crashed on this model. If it is a compiled one (EPContext), its context binary is damaged or was made "
        "by another QNN version; otherwise one of its operators does it (some poolings, "
        "and STFT with a computed step).",
        "Compiled: compile it again with this onnxruntime-qnn. Otherwise: replace the operator. " + _CPU,
        SYMPTOM, faults=_CRASH, phases=("creating", "compiling"), qnn=True),
    DeathRule(
        "QNN or the driver crashed while running this model: its context binary is damaged, or this input or model "
        "hits a fault of theirs.",
        "Compile the model again with this onnxruntime-qnn, update the NPU driver. " + _CPU, SYMPTOM,
        faults=_CRASH, phases=("running",), qnn=True),
    DeathRule(
        "ONNX Runtime itself, or a library of custom operators, crashed on this model: it is on the CPU, and QNN "
        "has no part in it. An operator is the cause, or an input that it does not expect.",
        "Use another version of onnxruntime in the host's Python, or set graph_optimization_level to "
        "ORT_DISABLE_ALL; report it to onnxruntime with the crash report.", SYMPTOM,
        faults=f"{_CRASH} {_ABORT} heap-corruption breakpoint invalid-handle", phases=MODEL, qnn=False),
    # --- files and libraries ---
    DeathRule("A QNN library is cut off (an interrupted installation, a full disk), or the context binary is.",
        _REINSTALL + " Check the free space. " + _REBUILD, STRONG, faults="bus",
        phases=(*START, "creating", "compiling"), qnn=True),
    DeathRule("A file that is mapped into memory is cut off: the model's weights, or a library.",
        "Copy the model again, or reinstall onnxruntime in the host's interpreter. Check the free space.",
        STRONG, faults="bus in-page", phases=("creating", "compiling"), qnn=False),
    DeathRule(
        "A file that QNN has mapped into memory (context binary, weights) was cut off or replaced while in use.",
        "Do not overwrite models in use: write a new file and rename it.", STRONG, faults="bus in-page",
        phases=("running",), qnn=True),
    DeathRule("A file that is mapped into memory (weights) was cut off or replaced while in use.",
        "Do not overwrite models in use: write a new file and rename it.", STRONG, faults="bus in-page",
        phases=("running",), qnn=False),
    DeathRule(
        "ONNX Runtime's library died while it was loaded: it cannot read what processor this is (a container or "
        "emulator without /proc/cpuinfo), or the installation is mixed from several versions.",
        _REINSTALL + " In a container mount /proc.", STRONG, faults="access-violation", phases=("importing",)),
    DeathRule("The QNN execution provider died while it was loaded: it does not fit this ONNX Runtime.", _REINSTALL,
        STRONG, faults="access-violation abort", phases=("registering",)),
    DeathRule("Two copies of a library, each with its own memory allocator, are in the process.", ONE_SET, STRONG,
        faults="heap-corruption", qnn=True),
    DeathRule("The heap was damaged ({what}): a double free, or two copies of one library in the process.",
        ONE_SET, faults=_ABORT, qnn=True,
        line=r"(?P<what>(?:free|malloc|realloc)\(\): [\w /,!=<>.-]+|double free or corruption|munmap_chunk)"),
    DeathRule("The Visual C++ runtime for this machine is missing, or the Python installation is incomplete.",
        "Install the Visual C++ redistributable (ARM64 for an ARM64 host), or repair Python.",
        faults="library-missing", phases=("starting",), curable=False),
    DeathRule("The program needs the library {library}, which is not installed.",
        "Install it, or use another interpreter.", faults="not-found",
        line=r"error while loading shared libraries: (?P<library>[^:]+):", curable=False),
    # --- Python ---
    DeathRule("qnnbridge is not installed in the host's interpreter.", _INSTALL, faults="python-error usage",
        line=r"No module named '?qnnbridge_(?:host|os|protocol)\b", curable=False),
    # All but `encodings`: a Python that lacks its own files has the next rule.
    DeathRule("The host's interpreter lacks the package {module}.", _INSTALL, faults="python-error",
        line=r"ModuleNotFoundError: No module named '(?P<module>(?!encodings')[\w.]+)'", curable=False),
    DeathRule("The host's interpreter found another Python's files: PYTHONHOME or a broken virtual environment.",
        "Unset PYTHONHOME and PYTHONPATH for the host; make the virtual environment again.",
        line=r"No module named 'encodings'|init_fs_encoding", curable=False),
    DeathRule("The host was given standard streams that it cannot use.", "Start it through qnnbridge, with pipes.",
        line=r"can't initialize sys standard streams|init_sys_streams", curable=False),
    DeathRule("A native library of {module} could not be loaded: {why}",
        _REINSTALL + " Install the Visual C++ redistributable for the host's machine.",
        line=r"DLL load failed while importing (?P<module>\S+): (?P<why>.+)", curable=False),
    DeathRule("A native library is for another machine: {why}",
        "Install the packages with the host's own interpreter; never copy them from another one. " + _INSTALL,
        line=r"^(?P<why>.*(?:\[WinError (?:193|216)\]|wrong ELF class|invalid ELF header|Exec format error|"
        r"incompatible architecture).*)", curable=False),
    DeathRule("A native library could not be loaded: {why}", _REINSTALL, STRONG, faults="python-error",
        line=r"(?:ImportError|OSError): (?P<why>.*(?:cannot open shared object file|undefined symbol|"
        r"version `[^']*' not found).*)", curable=False),
    DeathRule("The host's interpreter is too old for qnnbridge (a SyntaxError in its own files).",
        "Use Python 3.11 or newer for the host.", STRONG, faults="python-error", phases=("starting",),
        line=r"^SyntaxError: ", curable=False),
    DeathRule("The host's interpreter is too old for qnnbridge: it does not know {option} (Python 2 does not).",
        "Use Python 3.11 or newer for the host.", faults="usage", phases=("starting",),
        line=r"^Unknown option: (?P<option>-\w)$", curable=False),
    DeathRule(
        "The program named as the host's interpreter is no Python interpreter: it does not know Python's options.",
        _NAME_PYTHON, STRONG, faults="usage python-error", phases=("starting",),
        line=r"^\S.*: (?:invalid|unrecognized|unknown|illegal|bad) option", curable=False),
    DeathRule(
        "The program named as the host's interpreter is no Python interpreter: it ended at once, without output. "
        "(If it is one after all, something that it loads at its start calls sys.exit().)", _NAME_PYTHON,
        STRONG, faults="ok usage", phases=("starting",), silent=True),
    # The title of faulthandler.dump_traceback_later, which ends the process with _exit(1).
    DeathRule("The native call took longer than its budget; the host's own watchdog ended the process.",
        "Give the call more time, or find out why it hangs: the stack below tells where.",
        line=r"^Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!", faults="python-error"),
    DeathRule("A Python exception ended the host: {error}", "Read the traceback in the crash report.", SYMPTOM,
        faults="python-error",
        line=r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)(?:: .+)?)$"),
    DeathRule("Nothing on stderr: another program ended the process (Task Manager, taskkill, a security program).",
        "Find out which program ended it; the next start may just work.", SYMPTOM, faults="python-error",
        silent=True),
    # --- memory, and from outside ---
    DeathRule("The system had no memory left.",
        "Keep fewer sessions; use context binaries instead of compiling; close other programs.", STRONG,
        line=r"std::bad_alloc|^MemoryError|Cannot allocate memory|failed to commit"),
    DeathRule(
        # Of this rule and the next three exactly one fits a SIGKILL: the kernel's counter decides where it can be
        # read, else the phase does.
        "The kernel's out-of-memory killer struck while it lived: the machine (or container) had no memory left.",
        "Keep fewer sessions, use context binaries instead of compiling, close other programs. The kernel log "
        "(dmesg, journalctl -k) names the process that was killed.", PROOF, faults="kill", memory=(True,)),
    DeathRule(
        "Another process killed it (SIGKILL); the kernel's out-of-memory killer has not struck while it lived.",
        "Find out which program ended it; the next start may just work.", PROOF, faults="kill", memory=(False,)),
    DeathRule(
        "The kernel's out-of-memory killer ended it, or another process (SIGKILL): nothing here shows which.",
        "Look for 'Out of memory' in the kernel log (dmesg, journalctl -k). If it is there: keep fewer sessions, "
        "use context binaries instead of compiling.", STRONG, faults="kill", phases=("importing", *MODEL),
        memory=(None,)),
    DeathRule(
        "Another process (SIGKILL) or the kernel's out-of-memory killer ended it: nothing here shows which.",
        "Find out which program ended it; look for 'Out of memory' in the kernel log (dmesg, journalctl -k).",
        STRONG, faults="kill", phases=("starting", "registering", "idle", "closing"), memory=(None,)),
    DeathRule("Another process asked it to end ({signal}).",
        "Find out which program; the next start may just work.", STRONG, faults="terminate interrupt pipe"),
    # C++ calls std::terminate with this text when a std::thread is destroyed that can still be joined.
    DeathRule("The process ended while one of its threads was still in native code; all work was done.",
        "Nothing: no answer was lost.", STRONG, faults="abort", phases=("closing", "idle"),
        line=r"terminate called without an active exception"),
    DeathRule(
        "It ended as if it had been asked to: its standard input was closed, or something in it called sys.exit().",
        "Check custom operators and site hooks of the host's interpreter for sys.exit().", SYMPTOM,
        faults="ok"),
)
# fmt: on
