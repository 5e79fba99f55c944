"""`Config`, `Model` and `Adapters`. Each keeps a recipe to load the same native objects in a later host."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Literal

from qnnbridge._host import chosen_host
from qnnbridge.genai._media import MultiModalProcessor
from qnnbridge.genai._remote import ModelRecipe, Remade, RemoteModel, call_object, survive
from qnnbridge_protocol.errors import GenerationUnsupported, OptionError
from qnnbridge_protocol.model_records import check_travels
from qnnbridge_protocol.shown import Shown, counted
from qnnbridge_protocol.specs import Fallback, GenerationModelInfo, StagePlacement

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_protocol.shown import Fact


def names_of_options(given: Collection[str]) -> tuple[str, ...]:
    """Return the names as a tuple. Raise `OptionError` for a single string, which is a common mistake."""
    if isinstance(given, (str, bytes)) or not all(isinstance(one, str) for one in given):
        raise OptionError(
            f"allow_native={given!r} is not a list of names.",
            fix='Pass a list: allow_native=["custom_ops_library"].',
        )
    return tuple(given)


class Config(Shown):
    """Folder of a model, with changes to its genai_config.json that apply to this `Config` only.

    Args:
        config_path: the folder of the model.
        allow_native: names of options that the folder's genai_config.json may set although they load native code or
            write files, such as "custom_ops_library". Default: none.
    """

    def __init__(self, config_path: str | os.PathLike[str], *, allow_native: Collection[str] = ()) -> None:
        path = os.path.abspath(os.fsdecode(config_path))
        check_travels(path)
        self._folder = path
        self._allow_native = names_of_options(allow_native)
        # Calls of methods of genai's own Config, with their arguments. The host repeats them in this order, because
        # a later call may undo an earlier one.
        self._steps: list[tuple[Any, ...]] = []
        self._data: dict[str, bytes] = {}

    def _shown_name(self) -> str:
        return self._folder

    def _shown_facts(self) -> Iterator[Fact]:
        for method, *arguments in self._steps:
            yield f"{method}({', '.join(map(repr, arguments))})", "more"
        yield counted(len(self._steps) + len(self._data), "change"), ""

    @classmethod
    def from_package_ep(cls, config_path: str, ep: str) -> Config:
        raise GenerationUnsupported(
            "Config.from_package_ep is not available.",
            fix="Pass the folder of one variant of the package to Config().",
        )

    def append_provider(self, provider: str) -> None:
        """Append an execution provider to those of the config."""
        self._steps.append(("append_provider", str(provider)))

    def clear_providers(self) -> None:
        """Remove all execution providers."""
        self._steps.append(("clear_providers",))

    def set_provider_option(self, provider: str, name: str, value: str) -> None:
        """Set an option of an execution provider."""
        self._steps.append(("set_provider_option", str(provider), str(name), str(value)))

    def overlay(self, json_text: str) -> None:
        """Merge a JSON object into the config."""
        self._steps.append(("overlay", str(json_text)))

    def add_model_data(self, model_filename: str, model_data: Any) -> None:
        """Use a copy of these bytes instead of a file of the folder."""
        # Copy the bytes: a later host needs them, and the application may have freed its buffer by then.
        self._data[str(model_filename)] = bytes(memoryview(model_data))

    def remove_model_data(self, model_filename: str) -> None:
        """Remove the bytes that `add_model_data` added for a file."""
        self._data.pop(str(model_filename), None)

    def set_decoder_provider_options_hardware_device_type(self, provider: str, value: str) -> None:
        """Restrict an execution provider to devices of this type."""
        self._steps.append(("set_decoder_provider_options_hardware_device_type", str(provider), str(value)))

    def set_decoder_provider_options_hardware_device_id(self, provider: str, value: int) -> None:
        """Restrict an execution provider to the device with this id."""
        self._steps.append(("set_decoder_provider_options_hardware_device_id", str(provider), int(value)))

    def set_decoder_provider_options_hardware_vendor_id(self, provider: str, value: int) -> None:
        """Restrict an execution provider to devices of this vendor."""
        self._steps.append(("set_decoder_provider_options_hardware_vendor_id", str(provider), int(value)))

    def clear_decoder_provider_options_hardware_device_type(self, provider: str) -> None:
        """Allow devices of every type again."""
        self._steps.append(("clear_decoder_provider_options_hardware_device_type", str(provider)))

    def clear_decoder_provider_options_hardware_device_id(self, provider: str) -> None:
        """Allow devices with every id again."""
        self._steps.append(("clear_decoder_provider_options_hardware_device_id", str(provider)))

    def clear_decoder_provider_options_hardware_vendor_id(self, provider: str) -> None:
        """Allow devices of every vendor again."""
        self._steps.append(("clear_decoder_provider_options_hardware_vendor_id", str(provider)))


class Model(Shown):
    """A model for generation, loaded in the host.

    Args:
        config: the folder of the model, or a `Config`.
        host: the host process to use. Default: the host that all sessions of this process share. "daemon": the host
            that all applications share.
        fallback: "error" (default) refuses the model if a stage that requests QNN would run on the CPU; "cpu"
            allows it. `placement` reports the result.
        allow_native: names of options as in `Config`, in addition to those that the `Config` allows.
        timeout: seconds for loading. Default: no limit.

    Raises:
        GenerationFolderInvalid: a file of the folder is missing or damaged.
        NativeCodeRefused: see `allow_native`.
        GenerationUnsupported: this release of onnxruntime-genai cannot run the model.
        PlacementRefused: see `fallback`.
    """

    def __init__(
        self,
        config: Config | str | os.PathLike[str],
        *,
        host: Host | Literal["daemon"] | None = None,
        fallback: Fallback = "error",
        allow_native: Collection[str] = (),
        timeout: float | None = None,
    ) -> None:
        if not isinstance(config, Config):
            config = Config(config)
        if fallback not in ("error", "cpu"):
            raise OptionError(f"fallback={fallback!r} is not a valid value.", fix='Pass "error" or "cpu".')
        recipe = ModelRecipe(
            config._folder,
            tuple(config._steps),
            tuple(config._data.items()),
            fallback,
            (*config._allow_native, *names_of_options(allow_native)),
        )
        self._remote = RemoteModel(chosen_host(host), recipe)
        self._info = self._remote.open(timeout)

    def _shown_name(self) -> str:
        return self._remote.recipe.label if hasattr(self, "_remote") else ""

    def _shown_facts(self) -> Iterator[Fact]:
        """Yield the facts about the model that the host reported when it loaded the model."""
        if not hasattr(self, "_info"):  # the host has not loaded the model yet, or could not load it
            yield "not loaded", ""
            return
        if not self._remote.is_loaded:
            yield "not loaded; the next call loads the model again", ""
        yield from self._info._shown_facts()

    @property
    def type(self) -> str:
        """Type of the model, as genai reports it."""
        return self._info.type

    @property
    def device_type(self) -> str:
        """Name of the device, as genai reports it: "CPU" for every pipeline, wherever its stages run; see
        `placement`."""
        return self._info.device_type

    @property
    def info(self) -> GenerationModelInfo:
        """Facts about the loaded model: layout, window size, context length and more."""
        return self._info

    @property
    def placement(self) -> tuple[StagePlacement, ...]:
        """Placement of each stage: on the NPU or on the CPU."""
        return self._info.stages

    @property
    def host(self) -> Host:
        """Host that the model is loaded in."""
        return self._remote.host

    def close(self) -> None:
        """Free the model now if no generator uses it. A later call loads the model again.

        Without `close`, a model that is no longer referenced is freed with the next call to the host.
        """
        self._remote.forget()

    def create_multimodal_processor(self) -> MultiModalProcessor:
        """Return a processor that creates inputs of the model from a prompt with pictures and sound.

        Raises:
            GenerationUnsupported: the model accepts only text.
        """
        if not self._info.modalities:
            raise GenerationUnsupported(
                f"{self._info.label} accepts only text.",
                cause=f"Models of the type {self._info.type} have no processor for pictures or sound.",
                fix="Use a Tokenizer and append_tokens.",
            )
        return MultiModalProcessor(self._remote)

    def create_streaming_processor(self) -> Any:
        raise GenerationUnsupported(
            "Streaming speech recognition is not available through the bridge.",
            cause="onnxruntime-genai can stream only with models for live transcription (Nemotron).",
            fix="Use qnnbridge.speech, or a model that transcribes whole recordings.",
        )


class Adapters(Shown):
    """LoRA adapters of a model, for `Generator.set_active_adapter`."""

    def __init__(self, model: Model) -> None:
        self._loaded: dict[str, str] = {}
        remote, loaded = model._remote, self._loaded

        def load_all(process: HostProcess, number: int, deadline: float | None) -> None:
            # Iterate over a copy: another thread may load an adapter during the loop.
            for name, path in list(loaded.items()):
                arguments = {"path": path, "name": name}
                call_object(process, number, "load", arguments, (), deadline, remote.context)

        self._model = remote
        self._remade: Remade = remote.child("GenaiAdapters", "adapters", dict, complete=load_all)

    def _shown_name(self) -> str:
        return self._model.recipe.label

    def _shown_facts(self) -> Iterator[Fact]:
        # Iterate over a copy: another thread may load an adapter during the loop.
        for name, path in list(self._loaded.items()):
            yield f"{name} ({path})", ""
        if not self._loaded:
            yield "none loaded", ""

    def load(self, adapter_file_path: str | os.PathLike[str], adapter_name: str) -> None:
        """Load an adapter from a file."""
        path = os.path.abspath(os.fsdecode(adapter_file_path))
        self._call("load", {"path": path, "name": adapter_name})
        # Record the file after the call, so that later hosts do not load a file that this host refused.
        self._loaded[adapter_name] = path

    def unload(self, adapter_name: str) -> None:
        """Free an adapter."""
        self._call("unload", {"name": adapter_name})
        self._loaded.pop(adapter_name, None)

    def number_in(self, process: HostProcess, deadline: float | None) -> int:
        """Return the id of the native object in this host process, after loading all adapters there."""
        return self._remade.number_in(process, deadline)

    def _call(self, operation: str, arguments: dict[str, Any]) -> None:
        context = self._model.context
        survive(
            self._model.host,
            lambda process: call_object(
                process, self.number_in(process, None), operation, arguments, (), None, context
            ),
            context,
        )
