"""Tokenizers of a model, and decoders that turn tokens into text one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from ctypes import byref, c_char_p, c_int32
from typing import Any

from qnnbridge_host.genai.models import GenaiModel
from qnnbridge_host.genai.native import Object, token_array
from qnnbridge_protocol.errors import BridgeError, GenerationError, PromptRefused


class ModelTokenizer:
    """Tokenizer of a model. options: the options of genai's ``Tokenizer.update_options``."""

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
        """Return the ids of the special tokens, ``None`` for a token that the release or the model lacks."""
        return {
            "bos_token_id": self._id("OgaTokenizerGetBosTokenId"),
            "pad_token_id": self._pad(),
            "eos_token_ids": self._optional("OgaTokenizerGetEosTokenIds"),
        }

    def _pad(self) -> int | None:
        """Return the config's pad token: genai may use a different token as padding."""
        found = self._id("OgaTokenizerGetPadTokenId")
        return self.model.folder.pad if found is not None and found == self.model.filler else found

    def encode(self, text: str) -> list[int]:
        sequences = self._native.make("Sequences", "OgaCreateSequences")
        self._native.call("OgaTokenizerEncode", self._object.handle, text.encode(), sequences.handle)
        count = self._native.get("OgaSequencesGetSequenceCount", sequences.handle, 0)
        found: list[int] = self._native.get("OgaSequencesGetSequenceData", sequences.handle, 0)[:count]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        check_tokens(self.model, tokens)
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
                fix="Give a JSON list of maps with role and content, use only roles that the template supports, or "
                "give another template_str.",
                details=error.details,
            ) from None

    def stream(self) -> TokenStream:
        return TokenStream(self.model, "OgaCreateTokenizerStream", self._object)

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


def check_tokens(model: GenaiModel, tokens: Sequence[int]) -> None:
    """Raise `PromptRefused` for a token that genai would truncate or look up beyond the end of the vocabulary."""
    size = model.folder.vocab_size or 2**31  # genai truncates tokens to 32 bits
    wrong = next((one for one in tokens if not 0 <= one < size), None)
    if wrong is not None:
        raise PromptRefused(
            f"The token id {wrong} is outside of the model's vocabulary of {size}.",
            fix="Decode tokens of this model.",
        )


class TokenStream:
    """Decoder of single tokens. The text of a token may be incomplete until the next token arrives.

    function: creates the native stream from `source`, a tokenizer or a processor.
    """

    def __init__(self, model: GenaiModel, function: str, source: Object) -> None:
        self._model = model
        self._object = model.library.make("TokenizerStream", function, source.handle, keeps=(source,))

    def decode(self, tokens: Sequence[int]) -> list[str]:
        """Return the text that each token adds."""
        check_tokens(self._model, tokens)
        pieces, out = [], c_char_p()
        for token in tokens:
            self._model.library.call("OgaTokenizerStreamDecode", self._object.handle, token, byref(out))
            pieces.append((out.value or b"").decode("utf-8", "replace"))
        return pieces


class AnswerTexts:
    """Decoder of the answers of a generator, which decodes each token in the step that generates it.

    The native stream is kept between steps. Its texts depend only on the tokens of the answer that it has decoded
    before. It is valid as long as the history ends where the stream stopped and has not been shortened since.

    Args:
        tokenizer: creates the native stream.
        start: length of the history before the answer.
    """

    def __init__(self, tokenizer: ModelTokenizer, start: int) -> None:
        self.tokenizer = tokenizer
        self.start = start
        self._stream: TokenStream | None = None
        # Length of the history, and number of its cuts, at the last call of `decode`.
        self._place = (0, 0)

    def decode(self, history: Sequence[int], tokens: Sequence[int], *, done: bool, cuts: int) -> list[str]:
        """Return the text that each of the latest tokens adds.

        Args:
            history: all tokens, including the latest, but without the end token of a finished answer.
            tokens: the latest tokens. An end token adds no text.
            done: whether the answer is finished.
            cuts: how often tokens of the history were dropped or replaced.
        """
        ended = done and bool(tokens) and tokens[-1] in self.tokenizer.model.folder.eos
        before = max(self.start, len(history) - (len(tokens) - ended))
        # Drop the stream if an error occurs below: it has then decoded an unknown number of tokens.
        stream, self._stream = self._stream, None
        if stream is None or self._place != (before, cuts):
            stream = self.tokenizer.stream()
            stream.decode(history[self.start : before])
        texts = stream.decode(history[before:])
        self._stream, self._place = stream, (len(history), cuts)
        return [*texts, ""] if ended else texts
