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
    """A model of the application."""

    _remote: RemoteModel


class Tokenizer(Shown):
    """The model's tokenizer. Any thread.

    ``timeout=`` of its methods: seconds that the call may take, then `DeadlineExceeded`. Default: no limit.
    """

    def __init__(self, model: HasRemote) -> None:
        self._model = model._remote
        self._options: dict[str, str] = {}
        self._ids: dict[str, Any] | None = None
        # A local name: with `self` in the function the tokenizer and `remade` would keep each other.
        options = self._options
        self.remade = self._model.child("GenaiTokenizer", "tokenizer", lambda: {"options": options})

    def _shown_name(self) -> str:
        return self._model.recipe.label

    def _shown_facts(self) -> Iterator[Fact]:
        for name, value in list(self._options.items()):
            yield f"{name}={value}", ""

    def encode(self, text: str, *, timeout: float | None = None) -> npt.NDArray[np.int32]:
        """The tokens of a text."""
        import numpy as np

        return np.asarray(self._call("encode", {"texts": [whole_text(str(text))]}, timeout=timeout)[0], np.int32)

    def encode_batch(self, texts: Sequence[str]) -> Tensor:
        """The tokens of several texts, padded on the right."""
        import numpy as np

        rows = self._call("encode", {"texts": [whole_text(str(text)) for text in texts]})
        padded = np.full((len(rows), max(map(len, rows), default=0)), self.pad_token_id, np.int32)
        for row, tokens in zip(padded, rows, strict=True):
            row[: len(tokens)] = tokens
        return Tensor(padded)

    def decode(self, tokens: Any, *, timeout: float | None = None) -> str:
        """The text of tokens."""
        return str(self._call("decode", {}, token_values(tokens_of(tokens)), timeout)[0])

    def decode_batch(self, tokens: Any, *, timeout: float | None = None) -> list[str]:
        """The texts of several rows of tokens."""
        rows = tokens.as_numpy() if isinstance(tokens, Tensor) else tokens
        return list(self._call("decode", {}, token_values(*(tokens_of(row) for row in rows)), timeout))

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
        timeout: float | None = None,
    ) -> str:
        """The prompt for a conversation: JSON list of maps with role and content."""
        # An escape of JSON, unless its backslash is one that is escaped itself.
        if "\\u0000" in str(messages).replace("\\\\", ""):
            raise _cut_off()
        arguments = {
            "messages": whole_text(str(messages)),
            "template": template_str,
            "tools": tools,
            "add_generation_prompt": bool(add_generation_prompt),
        }
        return str(self._call("apply_chat_template", arguments, timeout=timeout))

    def update_options(self, **options: Any) -> None:
        """Set options of this tokenizer: add_special_tokens, skip_special_tokens."""
        texts = {name: _option_text(value) for name, value in options.items()}
        self._call("update_options", {"options": texts})
        # Behind the call: an option that genai refuses would make each further tokenizer fail.
        self._options.update(texts)

    def create_stream(self) -> TokenizerStream:
        """A decoder for single tokens."""
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
            raise GenerationUnsupported(f"The tokenizer does not tell its {name}.")
        return self._ids[name]

    def _call(
        self,
        operation: str,
        arguments: dict[str, Any],
        values: Sequence[Any] = (),
        timeout: float | None = None,
    ) -> Any:
        what = f"its tokenizer ({operation})"
        frame = self._model.on_object(self.remade, what, operation, arguments, values, timeout)
        return field(frame.header, "result", "Any")


class TokenizerStream(Shown):
    """Decodes tokens one by one; a token may give no text until the next one. One thread at a time.

    Tokens that a generator of the model has made ahead are decoded in the same call as the one before them.
    """

    def __init__(self, model: RemoteModel, source: Remade) -> None:
        self._model = model
        # A tokenizer, or a processor of pictures and sound.
        self._source = source
        # What the application has given, and what the host's stream has been given beyond that, with its texts.
        self._given: list[int] = []
        self._known: collections.deque[tuple[int, str]] = collections.deque()
        self._remade = self._new()

    def _shown_name(self) -> str:
        return self._model.recipe.label

    def _shown_facts(self) -> Iterator[Fact]:
        yield f"{counted(len(self._given), 'token')} decoded", ""

    def decode(self, token: int, *, timeout: float | None = None) -> str:
        """The text that a token adds. timeout: seconds, then `DeadlineExceeded`."""
        token = int(token)
        # The application decodes another token than the one made ahead. The host's stream has the latter already,
        # and cannot go back: a new stream gets what was given, and no more.
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
                # The host's stream may have decoded these tokens or not: the next call gets a new one.
                self._remade.forget()
                self._remade = self._new()
                raise
            self._known.extend(zip(tokens, pieces, strict=True))
        _, piece = self._known.popleft()
        self._given.append(token)
        return piece

    def _ahead(self, token: int) -> list[int]:
        """Tokens that are likely to be given next."""
        reference = self._model.ahead
        generation = None if reference is None else reference()
        # The stream may serve another generation of the model. Its last token is the sign that it does not.
        if generation is None or generation.tokens[-1:] != [token]:
            return []
        return list(generation.ahead)

    def _new(self) -> _RemoteStream:
        return _RemoteStream(self._model, self._source, self._given)


class _RemoteStream(Remade):
    """A stream in whichever host runs. The request that makes it already decodes the first tokens.

    source: the tokenizer or processor that makes it. given: tokens that it must have decoded before.
    """

    def __init__(self, model: RemoteModel, source: Remade, given: list[int]) -> None:
        super().__init__(model.host, "GenaiStream")
        self._model = model
        self._source = source
        self._given = given
        # Tokens of the next call.
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
    """Return the text. Raise `PromptRefused` if genai would cut it off."""
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
