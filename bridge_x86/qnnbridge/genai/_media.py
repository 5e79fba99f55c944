"""Pictures and sound: `Images`, `Audios`, and the processor that turns them into inputs of a model.

Files are read in the application, because the host may run as another user. The host decodes the bytes and keeps
the tensors. `ProcessedInputs` keeps the prompt and the bytes, so that the next host can create the same inputs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from qnnbridge._supervision.host_process import deadline_after
from qnnbridge.genai._remote import Remade, RemoteModel, operation_request, survive, token_values, tokens_of
from qnnbridge.genai._tensors import NamedTensors, Tensor
from qnnbridge.genai._tokenizer import TokenizerStream, whole_text
from qnnbridge_protocol.errors import GenerationUnsupported, OptionError, PromptRefused
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.shown import Shown, counted, with_article

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_protocol.frames import Frame
    from qnnbridge_protocol.shown import Fact

# Maximum size in bytes of all pictures, or of all recordings, of one prompt. The bytes stay in memory as long as
# the generators that were created from them.
MOST_BYTES: Final = 256 * 2**20


class _Media(Shown):
    """Contents of picture or sound files."""

    _one: ClassVar[str]

    def __init__(self, contents: Sequence[Any]) -> None:
        if not contents:
            raise OptionError(f"No {self._one} was given.", fix=f"Pass at least one {self._one}.")
        self.contents = tuple(map(self._bytes_of, contents))
        total = sum(map(len, self.contents))
        if total > MOST_BYTES:
            raise PromptRefused(
                f"The {self._one}s have {total:,} bytes in total.",
                cause=f"The limit is {MOST_BYTES:,} bytes: they stay in memory to repeat the prompt in a new host.",
                fix=f"Pass fewer or smaller {self._one}s.",
            )

    def __len__(self) -> int:
        return len(self.contents)

    def _shown_facts(self) -> Iterator[Fact]:
        size = sum(map(len, self.contents))
        yield f"{counted(len(self.contents), self._one)}, {size:,} bytes", ""

    @classmethod
    def _open(cls, paths: Sequence[Any]) -> Any:
        return cls([cls._read(path) for path in paths])

    @classmethod
    def _read(cls, path: Any) -> bytes:
        if not isinstance(path, (str, os.PathLike)):
            raise OptionError(
                f"{path!r} is not the path of {with_article(cls._one)}.", fix="Pass a string, or use open_bytes."
            )
        shown = os.fsdecode(path)
        try:
            # Check that the path is a regular file before `open`, which would block on a named pipe.
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise PromptRefused(f"{shown} is not a file.", fix=f"Pass the path of {with_article(cls._one)}.")
            if found.st_size > MOST_BYTES:
                raise PromptRefused(f"{shown} has {found.st_size:,} bytes; {MOST_BYTES:,} are allowed.")
            with open(path, "rb") as file:
                return file.read(MOST_BYTES + 1)
        except (OSError, ValueError) as error:  # ValueError: the path contains a null character
            reason = getattr(error, "strerror", None) or error
            raise PromptRefused(
                f"The {cls._one} {shown} cannot be read: {reason}.", fix="Check the path and the permissions."
            ) from None

    def _bytes_of(self, content: Any) -> bytes:
        try:
            found = bytes(memoryview(content))
        except TypeError:
            raise OptionError(
                f"A {self._one} must be bytes, not {type(content).__name__}.", fix="Pass bytes, or use open."
            ) from None
        if not found:
            raise PromptRefused(f"A {self._one} is empty.", fix=f"Pass the contents of a {self._one} file.")
        return found


class Images(_Media):
    """Pictures for `MultiModalProcessor`: PNG or JPEG. The host decodes them when a prompt is processed."""

    _one = "picture"

    @staticmethod
    def open(*image_paths: str | os.PathLike[str]) -> Images:
        """Read the pictures from files now, not when the prompt is processed."""
        found: Images = Images._open(image_paths)
        return found

    @staticmethod
    def open_bytes(*image_datas: Any) -> Images:
        """Copy the contents of files, given as bytes or other buffers."""
        return Images(image_datas)


class Audios(_Media):
    """Recordings for `MultiModalProcessor`: WAV, FLAC or MP3. The host decodes them when a prompt is processed."""

    _one = "recording"

    @staticmethod
    def open(*audio_paths: str | os.PathLike[str]) -> Audios:
        """Read the recordings from files now, not when the prompt is processed."""
        found: Audios = Audios._open(audio_paths)
        return found

    @staticmethod
    def open_bytes(*audio_datas: Any) -> Audios:
        """Copy the contents of files, given as bytes or other buffers."""
        return Audios(audio_datas)


class MultiModalProcessor(Shown):
    """Converter of prompts with pictures and sound into inputs of a model. Safe to use from any thread.

    Created by `Model.create_multimodal_processor`.
    """

    def __init__(self, model: RemoteModel) -> None:
        self._model = model
        self._remade = model.child("GenaiProcessor", "processor", dict)

    def _shown_name(self) -> str:
        return self._model.recipe.label

    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        images: Images | None = None,
        audios: Audios | None = None,
        timeout: float | None = None,
    ) -> NamedTensors:
        """Return inputs for `Generator.set_inputs`.

        Args:
            prompt: a string, or a list of strings for a batch. The strings contain the model's placeholders for
                pictures and sound.
            images: pictures, in the order of their placeholders.
            audios: recordings, in the order of their placeholders.
            timeout: seconds until `DeadlineExceeded` is raised. Default: no limit.

        Raises:
            PromptRefused: a picture or recording cannot be decoded, or the placeholders in the prompt do not match.
        """
        for given, kind, name in ((images, Images, "images"), (audios, Audios, "audios")):
            if given is not None and not isinstance(given, kind):
                raise OptionError(
                    f"{name}= must be {kind.__name__}, not {type(given).__name__}.",
                    fix=f"Use {kind.__name__}.open or {kind.__name__}.open_bytes.",
                )
        prompts: str | list[str] | None = None
        if isinstance(prompt, str):
            prompts = whole_text(prompt)
        elif prompt is not None:
            prompts = [whole_text(_text(one)) for one in prompt]
        pictures = images.contents if images is not None else ()
        sounds = audios.contents if audios is not None else ()
        return NamedTensors.of(ProcessedInputs(self._model, self._remade, prompts, pictures, sounds, timeout))

    def create_stream(self) -> TokenizerStream:
        """Return a decoder for single tokens."""
        return TokenizerStream(self._model, self._remade)

    def decode(self, tokens: Any, *, timeout: float | None = None) -> str:
        """Return the text of tokens."""
        values = token_values(tokens_of(tokens))
        reply = self._model.on_object(self._remade, "its processor (decode)", "decode", {}, values, timeout)
        return str(field(reply.header, "result", "str"))


class ProcessedInputs:
    """Inputs that the host has created from a prompt, with the data needed to create them again in another host.

    Attributes:
        names: names of the tensors.
        tokens: token ids of the prompt, including those that stand for pictures and sound.
        shape: dimensions of ``input_ids``.
        digest: SHA-256 of the model, the prompt, the pictures and the recordings.
    """

    def __init__(
        self,
        model: RemoteModel,
        processor: Remade,
        prompts: str | list[str] | None,
        pictures: Sequence[bytes],
        sounds: Sequence[bytes],
        timeout_s: float | None,
    ) -> None:
        import numpy as np

        self.model = model
        arguments = {"prompts": prompts, "images": len(pictures), "audios": len(sounds)}
        values = [np.frombuffer(one, np.uint8) for one in (*pictures, *sounds)]
        label = f"a prompt with {counted(len(pictures), 'picture')} and {counted(len(sounds), 'recording')}"
        context = model.context_of(label, ["inputs", arguments], values)
        self.digest = context.fingerprint

        def make(process: HostProcess, deadline: float | None) -> Any:
            number = processor.number_in(process, deadline)
            header, buffers = operation_request(number, "inputs", arguments, values)
            return header, buffers, context

        self.remade = _RemadeInputs(model.host, "GenaiInputs", make)
        # Create the inputs immediately, so that a picture that cannot be decoded is reported here.
        deadline = deadline_after(timeout_s)
        survive(model.host, lambda one: self.remade.number_in(one, deadline), context, deadline, timeout_s)
        facts = self.remade.facts
        self.names = field(facts, "names", "tuple[str, ...]")
        self.tokens = field(facts, "tokens", "tuple[int, ...]")
        self.shape = field(facts, "shape", "tuple[int, ...]")

    def tensor(self, name: str) -> Tensor:
        """Return a copy of the input with this name."""
        from qnnbridge_protocol.values import decode_all

        what = "its inputs (tensor)"
        frame = self.model.on_object(self.remade, what, "tensor", {"name": name})
        value = decode_all(field(frame.header, "values", "tuple[Any]"), frame.buffers)[0]
        if hasattr(value, "element_type"):
            raise GenerationUnsupported(
                f"NumPy has no data type for the tensor {name}.",
                fix="Pass the inputs to set_inputs without reading this tensor.",
            )
        return Tensor(value)


class _RemadeInputs(Remade):
    """Native inputs in the current host. facts: the host's answer to their creation (names, tokens, shape)."""

    facts: Mapping[str, Any] = MappingProxyType({})

    def _made(self, frame: Frame) -> None:
        self.facts = field(frame.header, "result", "Mapping[str, Any]")


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise OptionError(
            f"A prompt must be a string, not {type(given).__name__}.", fix="Pass a string or a list of strings."
        )
    return given
