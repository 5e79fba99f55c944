"""Create inputs of a model from a prompt with pictures and sound.

onnxruntime-genai's processor creates the inputs. Its tensors are copied immediately, and each native generator gets
new tensors: a Whisper generator takes over the memory of its inputs (0.18.0), so a second generator with the same
inputs would fail.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_size_t, c_void_p
from typing import Any, Final

from qnnbridge_host.genai.media_check import check_picture, check_sound
from qnnbridge_host.genai.models import GenaiModel
from qnnbridge_host.genai.native import GenaiLibrary, Object, make_tensor, read_tensor, token_array
from qnnbridge_protocol.errors import GenerationError, PromptRefused

# Name of the tensor that contains the prompt.
INPUT_IDS: Final = "input_ids"
# Tensors that onnxruntime-genai reads as 64-bit integers, whatever their type is.
_INTEGERS: Final = frozenset(
    ("num_image_tokens", "image_sizes", "image_grid_thw", "audio_sizes", "audio_projection_mode")
)
_WHISPER: Final = "whisper"
_LONG_MARK: Final = re.compile(r"<\|(?:image|audio)_\d{10}")


class ModelInputs:
    """Copies of the processor's tensors, by name. tokens: all token ids of the prompt, row by row for a batch."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        ids = arrays.pop(INPUT_IDS)
        self.arrays = arrays
        self.shape = [int(one) for one in ids.shape]
        self.tokens = [int(one) for one in ids.reshape(-1)]

    def describe(self) -> dict[str, Any]:
        """Describe the inputs for the application. kv_bytes: size of the inputs, which a daemon adds to the size of
        the KV caches."""
        size = sum(int(getattr(array, "data", array).nbytes) for array in self.arrays.values())
        names = [INPUT_IDS, *self.arrays]
        return {"names": names, "tokens": self.tokens, "shape": self.shape, "kv_bytes": size}

    def tensor(self, name: str) -> Any:
        if name not in self.arrays:
            raise PromptRefused(
                f"The inputs have no {name!r}.", fix=f"Use one of the names {', '.join(self.arrays)}."
            )
        return self.arrays[name]


class ModelProcessor:
    """Processor of a model. All applications share the native processor, which is locked while it works."""

    def __init__(self, model: GenaiModel) -> None:
        self.model = model
        self.native = model.processor()

    def process(
        self, prompts: str | Sequence[str] | None, pictures: Sequence[bytes], sounds: Sequence[bytes]
    ) -> ModelInputs:
        """Return the inputs. Raise `PromptRefused` if a file cannot be decoded or does not match the prompt."""
        for checked, given in ((check_picture, pictures), (check_sound, sounds)):
            for number, data in enumerate(given, 1):
                checked(data, number)
        prompts = self._checked(prompts, bool(pictures or sounds))
        library = self.model.library
        with self.model.processing:
            try:
                images = load_media(library, "Images", pictures)
                audios = load_media(library, "Audios", sounds)
                handles = [None if one is None else one.handle for one in (images, audios)]
                name = "OgaProcessorProcessImagesAndAudios"
                if isinstance(prompts, str):
                    made = library.make("NamedTensors", name, self.native.handle, prompts.encode(), *handles)
                else:
                    texts = text_array(library, prompts or ())
                    made = library.make(
                        "NamedTensors", name + "AndPrompts", self.native.handle, texts.handle, *handles
                    )
                return ModelInputs(read_tensors(library, made))
            except (GenerationError, MemoryError) as error:
                raise PromptRefused(
                    "The prompt cannot be processed with its pictures and sound.",
                    cause=getattr(error, "message", "") or str(error),
                    fix="Give as many placeholders for pictures and sound in the prompt as there are files. These "
                    "formats can be decoded: PNG and JPEG (not CMYK), WAV, FLAC and MP3.",
                    details=getattr(error, "details", None),
                ) from None

    def _checked(self, prompts: str | Sequence[str] | None, has_media: bool) -> str | Sequence[str] | None:
        """Return the prompts in the form that the model's processor expects."""
        several = isinstance(prompts, (list, tuple))
        for text in prompts if several and prompts else [prompts]:
            # Refuse long numbers: the processors of Phi find placeholders with a regular expression that recurses
            # for each digit.
            if isinstance(text, str) and _LONG_MARK.search(text):
                raise PromptRefused(
                    "A placeholder for a picture or sound in the prompt has ten digits or more.",
                    cause="onnxruntime-genai crashes for such a placeholder.",
                    fix="Remove the placeholder, or insert a space into it so that it counts as text.",
                )
        if self.model.folder.type == _WHISPER:
            return prompts
        if several and len(prompts or ()) > 1:
            raise PromptRefused(
                f"{self.model.folder.label} takes one prompt at a time with pictures or sound.",
                cause="onnxruntime-genai would ignore all prompts of the list.",
                fix="Process each prompt separately. Only Whisper models accept several prompts.",
            )
        one = (prompts[0] if prompts else "") if several else prompts
        if not one and not has_media:
            raise PromptRefused("The prompt is empty.", fix="Give a text, pictures or sound.")
        return one or ""  # for an empty prompt genai inserts the placeholders itself

    def decode(self, tokens: Sequence[int]) -> str:
        with self.model.processing:
            library = self.model.library
            return library.text("OgaProcessorDecode", self.native.handle, token_array(tokens), len(tokens))


def check_given(arrays: Mapping[str, Any]) -> None:
    """Raise `PromptRefused` for tensors of an application that native code would read beyond their end."""
    for name, array in arrays.items():
        if name in _INTEGERS and str(getattr(array, "dtype", "")) != "int64":
            raise PromptRefused(
                f"{name} must be a tensor of int64.", fix="Pass the tensor unchanged, as the processor created it."
            )


def named_tensors(native: GenaiLibrary, arrays: Mapping[str, Any]) -> Object:
    """Return native tensors that use the memory of these arrays and keep the arrays alive."""
    made = native.make("NamedTensors", "OgaCreateNamedTensors")
    for name, array in arrays.items():
        tensor = make_tensor(native, array)
        native.call("OgaNamedTensorsSet", made.handle, name.encode(), tensor.handle)
        made.keeps += (tensor,)
    return made


def load_media(library: GenaiLibrary, kind: str, contents: Sequence[bytes]) -> Object | None:
    """Return native pictures (kind "Images") or sound ("Audios"), not yet decoded."""
    if not contents:
        return None
    count = len(contents)
    pointers = (c_void_p * count)(*(c_void_p.from_buffer(c_char_p(one)).value for one in contents))
    sizes = (c_size_t * count)(*map(len, contents))
    # `keeps` holds the bytes, because the library may refer to them.
    return library.make(kind, f"OgaLoad{kind}FromBuffers", pointers, sizes, count, keeps=tuple(contents))


def text_array(library: GenaiLibrary, texts: Sequence[str]) -> Object:
    """Return a native array of texts."""
    array = (c_char_p * len(texts))(*(text.encode() for text in texts))
    return library.make("StringArray", "OgaCreateStringArrayFromStrings", array, len(texts))


def read_tensors(library: GenaiLibrary, tensors: Object) -> dict[str, Any]:
    """Return copies of the tensors by name."""
    names = library.make("StringArray", "OgaNamedTensorsGetNames", tensors.handle)
    count, out = c_size_t(), c_char_p()
    library.call("OgaStringArrayGetCount", names.handle, byref(count))
    found = {}
    for number in range(count.value):
        library.call("OgaStringArrayGetString", names.handle, number, byref(out))
        name = out.value or b""
        found[name.decode()] = read_tensor(
            library, library.make("Tensor", "OgaNamedTensorsGet", tensors.handle, name)
        )
    return found
