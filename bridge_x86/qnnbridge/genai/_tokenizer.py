"""The tokenizer of a model, and streams that decode tokens one by one."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge.genai._remote import Remade, RemoteModel, operation_request, token_values, tokens_of
from qnnbridge.genai._tensors import Tensor
from qnnbridge_protocol.errors import GenerationUnsupported, PromptRefused, desync
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.shown import Shown, counted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge_protocol.frames import Frame
    from qnnbridge_protocol.shown import Fact


class HasRemote(Protocol):
    """The part of `Model` that `Tokenizer` needs: the attribute that refers to the model in the host."""

    _remote: RemoteModel


class Tokenizer(Shown):
    """Tokenizer of a model. Safe to use from any thread.

    ``timeout=`` of the methods: seconds until `DeadlineExceeded` is raised. Default: no limit.
    """

    def __init__(self, model: HasRemote) -> None:
        self._model = model._remote
        self._options: dict[str, str] = {}
        self._ids: dict[str, Any] | None = None
        # Number of option changes. `_rendered` contains the number at that time, the last output of a chat template
        # and the output's tokens, because most applications encode that output next.
        self._changes = 0
        self._rendered: tuple[int, str, Any] | None = None
        # Use a local variable: a lambda that refers to `self` would create a reference cycle through `remade`.
        options = self._options
        self.remade = self._model.child("GenaiTokenizer", "tokenizer", lambda: {"options": options})

    def _shown_name(self) -> str:
        return self._model.recipe.label

    def _shown_facts(self) -> Iterator[Fact]:
        for name, value in list(self._options.items()):
            yield f"{name}={value}", ""

    def encode(self, text: str, *, timeout: float | None = None) -> npt.NDArray[np.int32]:
        """Return the tokens of a text."""
        import numpy as np

        text, rendered = whole_text(str(text)), self._rendered
        if rendered is not None and rendered[:2] == (self._changes, text):
            return np.array(rendered[2], np.int32)
        return np.asarray(self._call("encode", {"texts": [text]}, timeout=timeout)[0], np.int32)

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """Return the tokens of several texts, padded on the right."""
        import numpy as np

        rows = self._call("encode", {"texts": [whole_text(str(text)) for text in texts]})
        padded = np.full((len(rows), max(map(len, rows), default=0)), self.pad_token_id, np.int32)
        for row, tokens in zip(padded, rows, strict=True):
            row[: len(tokens)] = tokens
        return Tensor(padded)

    def decode(self, tokens: Any, *, timeout: float | None = None) -> str:
        """Return the text of tokens."""
        return str(self._call("decode", {}, token_values(tokens_of(tokens)), timeout)[0])

    def decode_batch(self, tokens: Any, *, timeout: float | None = None) -> list[str]:
        """Return the text of each row of tokens."""
        rows = tokens.as_numpy() if isinstance(tokens, Tensor) else tokens
        return list(self._call("decode", {}, token_values(*(tokens_of(row) for row in rows)), timeout))

    def to_token_id(self, text: str) -> int:
        """Return the id of the token with this text."""
        return int(self._call("to_token_id", {"text": str(text)}))

    def apply_chat_template(
        self,
        messages: str,
        *,
        template_str: str | None = None,
        tools: str | None = None,
        add_generation_prompt: bool = True,
        timeout: float | None = None,
    ) -> str:
        """Return the prompt for a conversation.

        Args:
            messages: JSON list of objects with "role" and "content".
            template_str: chat template to use instead of the model's.
            tools: JSON list of the functions that the model may call.
            add_generation_prompt: whether the prompt ends with the beginning of an answer.
            timeout: see `Tokenizer`.
        """
        # Find the JSON escape \u0000 of the null character. Remove escaped backslashes first (as in \\u0000).
        if "\\u0000" in str(messages).replace("\\\\", ""):
            raise _cut_off()
        arguments = {
            "messages": whole_text(str(messages)),
            "template": template_str,
            "tools": tools,
            "add_generation_prompt": bool(add_generation_prompt),
            "encode": True,
        }
        from qnnbridge_protocol.values import decode_all

        # Read the number before the request, because another thread may change the options during the request.
        changes = self._changes
        frame = self._operate("apply_chat_template", arguments, timeout=timeout)
        text = str(field(frame.header, "result", "Any"))
        tokens = decode_all(field(frame.header, "values", "tuple[Any, ...]"), frame.buffers)
        if tokens:
            self._rendered = (changes, text, tokens[0])
        return text

    def update_options(self, **options: Any) -> None:
        """Set options of this tokenizer: add_special_tokens, skip_special_tokens."""
        texts = {name: _option_text(value) for name, value in options.items()}
        self._call("update_options", {"options": texts})
        # Record the options after the call: an option that genai refuses would make every later tokenizer fail.
        self._options.update(texts)
        self._changes += 1

    def create_stream(self) -> TokenizerStream:
        """Return a decoder for single tokens."""
        return TokenizerStream(self._model, self.remade)

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
            raise GenerationUnsupported(f"The tokenizer does not provide {name}.")
        return self._ids[name]

    def _call(
        self,
        operation: str,
        arguments: dict[str, Any],
        values: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Any:
        return field(self._operate(operation, arguments, values, timeout).header, "result", "Any")

    def _operate(
        self,
        operation: str,
        arguments: dict[str, Any],
        values: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Frame:
        what = f"its tokenizer ({operation})"
        return self._model.on_object(self.remade, what, operation, arguments, values, timeout)


class TokenizerStream(Shown):
    """Decoder of single tokens. A token may add no text until the next token arrives. Not thread-safe.

    The request that decodes a token also decodes the tokens that a generator of the model has generated ahead.
    """

    def __init__(self, model: RemoteModel, source: Remade) -> None:
        self._model = model
        # The tokenizer or multimodal processor that creates the native stream.
        self._source = source
        # Tokens passed to `decode` (`_given`); tokens that the host has decoded ahead, with their texts (`_known`).
        self._given: list[int] = []
        self._known: collections.deque[tuple[int, str]] = collections.deque()
        self._remade = self._new()

    def _shown_name(self) -> str:
        return self._model.recipe.label

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{counted(len(self._given), 'token')} decoded", ""

    def decode(self, token: int, *, timeout: float | None = None) -> str:
        """Return the text that a token adds. timeout: seconds until `DeadlineExceeded` is raised."""
        token = int(token)
        # The application passed a different token than the one decoded ahead. The host's stream cannot go back, so
        # a new stream decodes all earlier tokens again.
        if self._known and self._known[0][0] != token:
            self._known.clear()
            self._remade.forget()
            self._remade = self._new()
        if not self._known:
            tokens = [token, *self._ahead(token)]
            self._remade.first, what = tokens, "its tokenizer (decode)"
            try:
                reply = self._model.on_object(self._remade, what, "decode", {"tokens": tokens}, (), timeout)
                pieces = field(reply.header, "result", "tuple[str, ...]")
                if len(pieces) != len(tokens):
                    raise desync(f"{len(pieces)} texts for {len(tokens)} tokens")
            except BaseException:
                # The host's stream may have decoded some of these tokens, so the next call creates a new stream.
                self._remade.forget()
                self._remade = self._new()
                raise
            self._known.extend(zip(tokens, pieces, strict=True))
        _, piece = self._known.popleft()
        self._given.append(token)
        return piece

    def _ahead(self, token: int) -> list[int]:
        """Return the tokens that the application will most likely decode next."""
        reference = self._model.ahead
        generation = None if reference is None else reference()
        # A token that is not the last one of this generation may belong to another generation of the model.
        if generation is None or generation.tokens[-1:] != [token]:
            return []
        return list(generation.ahead)

    def _new(self) -> _RemoteStream:
        return _RemoteStream(self._model, self._source, self._given)


class _RemoteStream(Remade):
    """Native stream in the current host. The request that creates the stream also decodes the first tokens.

    source: the tokenizer or processor that creates the stream. given: tokens that the new stream must decode first.
    """

    def __init__(self, model: RemoteModel, source: Remade, given: list[int]) -> None:
        super().__init__(model.host, "GenaiStream")
        self._model = model
        self._source = source
        self._given = given
        # Tokens that the next call will decode.
        self.first: list[int] = []
        self._answer: Frame | None = None

    def answer_of_creation(self) -> Frame | None:
        answer, self._answer = self._answer, None
        return answer

    def _request(self, process: HostProcess, deadline: float | None) -> Any:
        number = self._source.number_in(process, deadline)
        values = token_values(self._given) if self._given else []
        header, buffers = operation_request(number, "stream", {"tokens": self.first}, values)
        return header, buffers, self._model.context

    def _made(self, frame: Frame) -> None:
        self._answer = frame


def whole_text(text: str) -> str:
    """Return the text. Raise `PromptRefused` if it contains a null character, where genai would cut it off."""
    if "\0" in text:
        raise _cut_off()
    return text


def _cut_off() -> PromptRefused:
    return PromptRefused(
        "A text with a null character cannot be encoded.",
        cause="genai treats the null character as the end of the text and would cut off the prompt there.",
        fix="Remove the null character.",
    )


def _option_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
