"""One session: what it is made from, how it is made in a host, run there, and made again in the next.

Theory of operation. The host reads the model; this side keeps a `SessionRecipe`: the model's path or bytes, the
options, and the facts that the host reported when the session was made first. That is all it takes to make the
session again.

    session.BaseSession --> remote_session.RemoteSession --> replay: in which host, and after a death the next one
      run, run_with_...       one session.run                  --> create: one session.create, its progress
        +--> fast_calls: the second call with the same names, types and shapes (see `_fastpath`)

Invariants: a call either gives its result or raises the error that explains why not. A process and the session's
number in it are one object, so they cannot be of two hosts. Recipes are frozen, so any thread may read them.

`runs` has the options of a run, the other ways to run and the getters, `numbers_check` compares the first results
with the CPU's. `InferenceSession`, `_buckets`, the daemon and the modules of the API call it. It imports `_host`,
`_supervision`, `_transport`, `_fastpath` and the modules of values and options.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge_protocol.model_records import CacheSettings, ModelIdentity, absolute_model_path
from qnnbridge_protocol.settings import cache_settings
from qnnbridge_protocol.specs import CPU, QNN, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._threads import CalledFunction, Terminable


# What a session does about numbers that are not those of the CPU.
Verify = Literal["off", "warn", "raise"]
# path (or hash of the bytes), size, date in nanoseconds
Source = tuple[str, int, int]


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted; paths that do not depend on it work all the same
        return os.path.abspath(os.sep)


@dataclasses.dataclass(frozen=True)
class SessionRecipe:
    """All that a session is made from.

    Args:
        spec: options, providers and the model's absolute path.
        data: the bytes of a model without a path.
        initializers: values of the initializers that `spec` names.
        cache: whether a compiled model may be loaded in place of the model; ``None`` leaves that to the cache. The
            daemon has the settings of the application that asks.
        seed: of random operators; ``None`` leaves it to ONNX Runtime.
        folder: from where paths inside of a model given as bytes count.
        identity: the host's description of the model, ``None`` before its request.
        verify: what is done about numbers that are not the CPU's; ``None`` as the environment says.
        functions: of the application, by name, that the host may call when it makes the session.
        cancellation: says when the first creation is to be given up.
        context_check: whether a compiled model that cannot run is refused; default as the environment says.
        prepared: the specification with the folder that the model was chosen from; ``None`` for any other model.
        variant: the file of that folder and why it was chosen, for `Placement.variant`.
    """

    spec: SessionSpec
    data: bytes | None = None
    initializers: Sequence[Any] = ()
    cache: bool | CacheSettings | None = False
    seed: int | None = None
    folder: str = dataclasses.field(default_factory=_working_folder)
    identity: ModelIdentity | None = None
    verify: Verify | None = None
    context_check: str | None = None
    functions: Mapping[str, CalledFunction] = dataclasses.field(default_factory=dict)
    cancellation: Terminable | None = None
    prepared: SessionSpec | None = None
    variant: str = ""

    @property
    def label(self) -> str:
        """How messages call the model."""
        if self.identity is not None:
            return self.identity.label
        if self.spec.model_path is None:
            return f"<{len(self.data or b'')} bytes>"
        return os.path.basename(self.spec.model_path)

    @property
    def fingerprint(self) -> str:
        """Empty before the host has reported it."""
        return self.identity.fingerprint if self.identity is not None else ""

    @property
    def compiled(self) -> bool:
        """Whether the model is known to be compiled for QNN: no other provider can read it."""
        return self.identity is not None and self.identity.compiled

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is all that it asks for."""
        return [provider.name for provider in self.spec.providers] == [CPU]

    @property
    def without_qnn(self) -> bool:
        """Whether it asks for providers, and QNN is none of them."""
        names = [provider.name for provider in self.spec.providers]
        return bool(names) and QNN not in names

    @property
    def options_hash(self) -> str:
        """Of everything but the model, so that a change of options is another case."""
        return self.spec.options_hash

    def cache_settings(self) -> CacheSettings:
        """The cache settings for the host: the environment is read each time."""
        return self.cache if isinstance(self.cache, CacheSettings) else cache_settings(wanted=self.cache)

    def source(self, fingerprint: str) -> Source | None:
        """Where the model with this fingerprint was read from: recognizes it before it is read again."""
        path = self.spec.model_path
        if path is None:
            # Of bytes the fingerprint is the hash, unless there are files beside them.
            return fingerprint, len(self.data or b""), 0
        try:
            status = os.stat(path)
        except OSError:
            return None
        # A file that replaced another of the same size and date has another number, and on POSIX one that was
        # written to another time of change. Where these differ for another reason, the host looks at the contents.
        dates = (status.st_mtime_ns << 128) + (status.st_ctime_ns << 64) + status.st_ino
        return path, status.st_size, dates

    def was_read_from(self, source: Source) -> bool:
        """Whether `source` is what `source()` says of this model now. Bytes are hashed if their number fits."""
        if self.spec.model_path is not None:
            return source == self.source("")
        if self.data is None or source[1:] != (len(self.data), 0):
            return False
        import hashlib

        return hashlib.sha256(self.data).hexdigest() == source[0]

    def command(self, name: str) -> str:
        """Return the command `qnnbridge NAME` for the model, sizes and chip of this session; "" without a file.

        name: "verify" or "analyze", which take the same options.
        """
        spec = self.spec
        if spec.model_path is None:
            return ""
        from qnnbridge_protocol.shell import shell_word

        words = ["qnnbridge", name, spec.model_path]
        for dimension, size in spec.free_dimensions_by_name.items():
            words += ["--dim", f"{dimension}={size}"]
        chip = next(
            (p.options["soc_model"] for p in spec.providers if p.name == QNN and "soc_model" in p.options), None
        )
        words += ["--soc-model", str(chip)] if chip is not None else []
        return " ".join(map(shell_word, words))

    def forget_model(self) -> SessionRecipe:
        """Return the recipe without the model's identity, which a later creation determines again.

        Of a prepared folder that creation also chooses the file again.
        """
        return dataclasses.replace(self, spec=self.prepared or self.spec, identity=None, prepared=None, variant="")


def model_parts(path_or_bytes: object, *, prepared: bool = False) -> tuple[str | None, bytes | None]:
    """Return the absolute path of a model or its bytes.

    prepared: as for `absolute_model_path`. Raises what that raises, and `TypeError`.
    """
    if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
        return None, bytes(path_or_bytes)
    if not isinstance(path_or_bytes, (str, os.PathLike)):
        # ONNX Runtime's own words.
        raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
    if not os.fspath(path_or_bytes):
        # A `TypeError` in ONNX Runtime as well; made absolute it would be the working folder.
        raise TypeError("The path of the model is empty.")
    return absolute_model_path(path_or_bytes, prepared=prepared), None
