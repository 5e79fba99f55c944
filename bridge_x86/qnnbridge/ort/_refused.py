"""Classes of ``onnxruntime`` whose objects cannot cross a process: making one says why, and what to do instead."""

from __future__ import annotations

from typing import Any, NoReturn

from qnnbridge_protocol.errors import OptionError


class _Refused:
    """Importing the name works, so that annotations and ``isinstance`` do."""

    _cause = ""
    _fix = ""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise OptionError(f"{cls.__name__} cannot be used through qnnbridge.", cause=cls._cause, fix=cls._fix)


class OrtSyncStream(_Refused):
    """A stream of a device."""

    _cause = "A stream is a handle of native code, which is in the host process."
    _fix = "Leave it out: runs are synchronous, and the NPU provider has no streams."


class OrtEpContextData(_Refused):
    """A context binary in native memory."""

    _cause = "It is a view of ONNX Runtime's memory during a callback, which a Python function cannot get here."
    _fix = "Compile to a file (ModelCompiler.compile_to_file) and read the .bin beside it."


class OrtEpContextDataBuffer(OrtEpContextData):
    """A buffer for a context binary."""


class OrtExternalInitializerInfo(_Refused):
    """Where ModelCompiler is to put an initializer."""

    _cause = "ONNX Runtime asks a Python function for it, which cannot be called from the host process."
    _fix = "Give ModelCompiler external_initializers_file_path instead."


class ModelPackage(_Refused):
    """Writing of model packages: folders with several variants of a model."""

    _cause = "Its format is ONNX Runtime's own, which its native library alone reads and writes."
    _fix = "Write model packages with onnxruntime itself; open a variant's .onnx file with InferenceSession."

    @classmethod
    def open(cls, package_root: Any, *_: Any, **__: Any) -> NoReturn:
        cls._refuse()

    @classmethod
    def compute_directory_hash(cls, source_dir: Any) -> NoReturn:
        cls._refuse()


class ModelPackageContext(_Refused):
    """A model package from which a variant is to be chosen."""

    _cause = (
        "ONNX Runtime chooses a variant by the native provider libraries of its own process, and makes the session "
        "in there."
    )
    _fix = (
        "Open the .onnx file of the variant for QNN with InferenceSession, with the session and provider options "
        "that the package names for it."
    )


class ModelPackageOptions(ModelPackageContext):
    """By what a variant is to be chosen."""


class ModelPackageComponentContext(ModelPackageContext):
    """The variant that was chosen."""


class AdapterFormat(_Refused):
    """Reading and writing of LoRA adapter files."""

    _cause = "Its format is ONNX Runtime's own; the host only loads such files."
    _fix = "Write adapter files with onnxruntime itself; load them with LoraAdapter."

    @classmethod
    def read_adapter(cls, file_path: Any) -> NoReturn:
        cls._refuse()
