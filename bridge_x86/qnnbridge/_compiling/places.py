"""Where a compiled model goes: the path that `output` means, and what is in the way there."""

from __future__ import annotations

import dataclasses
import os
import secrets

from qnnbridge._compiling import names
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import OptionError


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """folder: absolute. model: file name of the .onnx in it."""

    folder: str
    model: str

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.model)

    def file_stem(self) -> str:
        """The stem to compile under. A context binary that is there already may belong to another model and is
        never replaced: an .onnx file beside a blob that is not its own computes wrong numbers."""
        stem = names.safe_stem(names.stem_of(self.model))
        if os.path.lexists(os.path.join(self.folder, names.blob_of(stem))):
            return names.safe_stem(f"{stem}-{secrets.token_hex(4)}")
        return stem


def place_of(source: ModelSource, output: str | os.PathLike[str] | None, *, tag: str = "") -> Place:
    """What `output` means: nothing is ``<stem>_ctx.onnx`` beside the model, a folder the same in there. A name
    without a suffix is a folder.

    tag: comes behind the model's stem in a name that is not given. Raises `OptionError` for a name that
    ONNX Runtime would load as something else, and for the model itself.
    """
    home = os.path.dirname(source.path) if source.path is not None else os.getcwd()
    stem = names.stem_of(source.path) if source.path is not None else names.WITHOUT_A_NAME
    name = names.context_stem(stem + tag) + names.MODEL_SUFFIX
    if output is None:
        place = Place(home, name)
    else:
        text = os.fsdecode(output)
        path = os.path.abspath(text)
        if os.path.isdir(path) or text.endswith(("/", os.sep)) or not os.path.splitext(path)[1]:
            place = Place(path, name)
        else:
            if not path.lower().endswith(names.MODEL_SUFFIX):
                raise OptionError(
                    f"The output {text} does not end in .onnx.",
                    cause="ONNX Runtime goes by the end of the name, and loads anything else as another format.",
                    fix="Give a file name that ends in .onnx, or a folder (ending in a slash if it has a dot).",
                )
            place = Place(os.path.dirname(path), os.path.basename(path))
            _check_name(names.stem_of(path))
    if source.path is not None and os.path.exists(place.path) and os.path.samefile(place.path, source.path):
        raise OptionError("The output is the model itself.", fix="Give another output.")
    return place


def _check_name(stem: str) -> None:
    safe = names.safe_stem(stem)
    if safe == stem:
        return
    cause = "QNN takes two dots in a row for a way out of the folder, and would never load the result."
    if ".." not in stem:
        cause = "The names of the files that belong to it would be longer than file systems take."
    raise OptionError(
        f"A compiled model cannot be called {stem}.onnx.", cause=cause, fix=f"Call it {safe}.onnx, for example."
    )
