"""A model's tokenizer, its streams, and its adapters: the small native objects beside models and generators."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_int32
from typing import Any

from qnnbridge_host.genai.models import GenaiModel
from qnnbridge_host.genai.native import token_array
from qnnbridge_protocol.errors import BridgeError, GenerationError, PromptRefused


class ModelTokenizer:
    """options: as of ``Tokenizer.update_options``."""

    def __init__(self, model: GenaiModel, options: Mapping[str, str]) -> None:
        self.model = model
        self._native = model.library
        self._object = self._native.make("Tokenizer", "OgaCreateTokenizer", model.model.handle, keeps=(model,))
        if options:
            self.update_options(options)

    def update_options(self, options: Mapping[str, str]) -> None:
        keys = (c_char_p * len(options))(*(key.encode() for key in options))
        values = (c_char_p * len(options))(*(value.encode() for value in options.values()))
        self._native.call("OgaUpdateTokenizerOptions", self._object.handle, keys, values, len(options))

    def ids(self) -> dict[str, Any]:
        """The numbers of the special tokens, ``None`` where this release or the model has none."""
        return {
            "bos_token_id": self._id("OgaTokenizerGetBosTokenId"),
            "pad_token_id": self._pad(),
            "eos_token_ids": self._optional("OgaTokenizerGetEosTokenIds"),
        }

    def _pad(self) -> int | None:
        """The config's: the one in use may be another."""
        found = self._id("OgaTokenizerGetPadTokenId")
        return self.model.folder.pad if found is not None and found == self.model.filler else found

    def encode(self, text: str) -> list[int]:
        sequences = self._native.make("Sequences", "OgaCreateSequences")
        self._native.call("OgaTokenizerEncode", self._object.handle, text.encode(), sequences.handle)
        count = self._native.get("OgaSequencesGetSequenceCount", sequences.handle, 0)
        found: list[int] = self._native.get("OgaSequencesGetSequenceData", sequences.handle, 0)[:count]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        self._check(tokens)
        return self._native.text("OgaTokenizerDecode", self._object.handle, token_array(tokens), len(tokens))

    def to_token_id(self, text: str) -> int:
        out = c_int32()
        self._native.call("OgaTokenizerToTokenId", self._object.handle, text.encode(), byref(out))
        return out.value

    def apply_chat_template(
        self, messages: str, template: str | None, tools: str | None, *, add_generation_prompt: bool
    ) -> str:
        given = [None if text is None else text.encode() for text in (template, messages, tools)]
        try:
            return self._native.text(
                "OgaTokenizerApplyChatTemplate", self._object.handle, *given, add_generation_prompt
            )
        except GenerationError as error:
            raise GenerationError(
                "The chat template cannot be applied to the messages.",
                cause=error.message,
                fix="Give a JSON list of maps with role and content, with roles that the template knows, "
                "or another template_str.",
                details=error.details,
            ) from None

    def stream(self) -> TokenStream:
        return TokenStream(self)

    def _check(self, tokens: Sequence[int]) -> None:
        size = self.model.folder.vocab_size
        wrong = next((one for one in tokens if not 0 <= one < size), None) if size else None
        if wrong is not None:
            raise PromptRefused(
                f"The token id {wrong} is outside of the model's vocabulary of {size}.",
                fix="Decode tokens of this model.",
            )

    def _id(self, function: str) -> int | None:
        out = c_int32()
        with contextlib.suppress(BridgeError):
            self._native.call(function, self._object.handle, byref(out))
            return out.value
        return None

    def _optional(self, function: str) -> list[int] | None:
        with contextlib.suppress(BridgeError):
            return self._native.ints(function, self._object.handle)
        return None


class TokenStream:
    """Decodes tokens one after the other; a token may give no text until the next one comes."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer
        self._native = tokenizer.model.library
        self._object = self._native.make(
            "TokenizerStream", "OgaCreateTokenizerStream", tokenizer._object.handle, keeps=(tokenizer,)
        )

    def decode(self, tokens: Sequence[int]) -> list[str]:
        """The text that each token adds."""
        self._tokenizer._check(tokens)
        pieces, out = [], c_char_p()
        for token in tokens:
            self._native.call("OgaTokenizerStreamDecode", self._object.handle, token, byref(out))
            pieces.append((out.value or b"").decode("utf-8", "replace"))
        return pieces


class ModelAdapters:
    """LoRA adapters of a model."""

    def __init__(self, model: GenaiModel) -> None:
        self._native = model.library
        self.object = self._native.make("Adapters", "OgaCreateAdapters", model.model.handle, keeps=(model,))

    def load(self, path: str, name: str) -> None:
        self._native.call("OgaLoadAdapter", self.object.handle, path.encode(), name.encode())

    def unload(self, name: str) -> None:
        self._native.call("OgaUnloadAdapter", self.object.handle, name.encode())
