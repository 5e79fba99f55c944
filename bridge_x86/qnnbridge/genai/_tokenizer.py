"""`Tokenizer` and `TokenizerStream`, with the interface of onnxruntime_genai."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge.genai._model import Model, token_values, tokens_of
from qnnbridge.genai._survival import Remade, call_object, operation_request, survive
from qnnbridge.genai._tensors import Tensor
from qnnbridge_protocol.errors import GenerationUnsupported, PromptRefused
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.frames import desync

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_protocol.frames import Frame


class Tokenizer:
    """The model's tokenizer. Any thread."""

    def __init__(self, model: Model) -> None:
        self._model = model._remote
        self._options: dict[str, str] = {}
        self._ids: dict[str, Any] | None = None
        options = self._options
        self.remade = self._model.child("GenaiTokenizer", "tokenizer", lambda: {"options": options})

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """The tokens of a text."""
        import numpy as np

        return np.asarray(self._call("encode", {"texts": [_whole(str(text))]})[0], np.int32)

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """The tokens of several texts, padded on the right."""
        import numpy as np

        rows = self._call("encode", {"texts": [_whole(str(text)) for text in texts]})
        padded = np.full((len(rows), max(map(len, rows), default=0)), self.pad_token_id, np.int32)
        for row, tokens in zip(padded, rows, strict=True):
            row[: len(tokens)] = tokens
        return Tensor(padded)

    def decode(self, tokens: Any) -> str:
        """The text of tokens."""
        return str(self._call("decode", {}, token_values(tokens_of(tokens)))[0])

    def decode_batch(self, tokens: Any) -> list[str]:
        """The texts of several rows of tokens."""
        rows = tokens.as_numpy() if isinstance(tokens, Tensor) else tokens
        return list(self._call("decode", {}, token_values(*(tokens_of(row) for row in rows))))

    def to_token_id(self, text: str) -> int:
        """The id of a single token by its text."""
        return int(self._call("to_token_id", {"text": str(text)}))

    def apply_chat_template(
        self,
        messages: str,
        *,
        template_str: str | None = None,
        tools: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for a conversation: JSON list of maps with role and content."""
        # An escape of JSON, unless its backslash is one that is escaped itself.
        if "\\u0000" in str(messages).replace("\\\\", ""):
            raise _cut_off()
        arguments = {
            "messages": _whole(str(messages)),
            "template": template_str,
            "tools": tools,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        return str(self._call("apply_chat_template", arguments))

    def update_options(self, **options: Any) -> None:
        """Set options of this tokenizer: add_special_tokens, skip_special_tokens."""
        texts = {name: _option_text(value) for name, value in options.items()}
        self._call("update_options", {"options": texts})
        self._options.update(texts)

    def create_stream(self) -> TokenizerStream:
        """A decoder for single tokens."""
        return TokenizerStream(self)

    @property
    def bos_token_id(self) -> int:
        return int(self._special("bos_token_id"))

    @property
    def pad_token_id(self) -> int:
        return int(self._special("pad_token_id"))

    @property
    def eos_token_ids(self) -> npt.NDArray[np.int32]:
        import numpy as np

        return np.asarray(self._special("eos_token_ids"), np.int32)

    def _special(self, name: str) -> Any:
        if self._ids is None:
            self._ids = self._call("ids", {})
        if self._ids[name] is None:
            raise GenerationUnsupported(f"The tokenizer does not tell its {name}.")
        return self._ids[name]

    def _call(self, operation: str, arguments: dict[str, Any], values: Sequence[Any] = ()) -> Any:
        return field(self.on_object(self.remade, operation, arguments, values).header, "result", "Any")

    def on_object(self, remade: Remade, operation: str, arguments: dict[str, Any], values: Sequence[Any]) -> Frame:
        """Call an operation of the tokenizer, or of a stream of it."""
        context = self._model.context

        def attempt(process: HostProcess) -> Frame:
            number = remade.number_in(process, None)
            return call_object(process, number, operation, arguments, values, None, context)

        return survive(self._model.host, attempt, context)


class TokenizerStream:
    """Decodes tokens one by one; a token may give no text until the next one. One thread at a time.

    Tokens that a generator of the model has made ahead are decoded in the same call as the one before them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # What the application has given, and what the host's stream has been given beyond that, with its texts.
        self._given: list[int] = []
        self._known: collections.deque[tuple[int, str]] = collections.deque()
        self._remade = self._new()

    def decode(self, token: int) -> str:
        """The text that a token adds."""
        token = int(token)
        if self._known and self._known[0][0] != token:
            self._known.clear()
            self._remade.forget()
            self._remade = self._new()
        if not self._known:
            tokens = [token, *self._ahead(token)]
            reply = self._tokenizer.on_object(self._remade, "decode", {"tokens": tokens}, ())
            pieces = field(reply.header, "result", "tuple[str, ...]")
            if len(pieces) != len(tokens):
                raise desync(f"{len(pieces)} texts for {len(tokens)} tokens")
            self._known.extend(zip(tokens, pieces, strict=True))
        _, piece = self._known.popleft()
        self._given.append(token)
        return piece

    def _ahead(self, token: int) -> list[int]:
        """Tokens that are likely to be given next."""
        reference = self._tokenizer._model.ahead
        generation = None if reference is None else reference()
        if generation is None or generation.tokens[-1:] != [token]:
            return []
        return list(generation.ahead)

    def _new(self) -> Remade:
        tokenizer, given = self._tokenizer, self._given

        def make(process: HostProcess, deadline: float | None) -> Any:
            number = tokenizer.remade.number_in(process, deadline)
            values = token_values(given) if given else []
            header, buffers = operation_request(number, "stream", {}, values)
            return header, buffers, tokenizer._model.context

        return Remade(tokenizer._model.host, "GenaiStream", make)


def _whole(text: str) -> str:
    if "\0" in text:
        raise _cut_off()
    return text


def _cut_off() -> PromptRefused:
    return PromptRefused(
        "A text with a character 0 cannot be encoded.",
        cause="genai takes it for the end of the text, and would answer another prompt.",
        fix="Leave the character out.",
    )


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
