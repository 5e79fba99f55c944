"""Models for embeddings (`serve --embed`): folder, tokens, batches, pooling and loading.

Texts are sorted by length and run in batches of the compiled sizes. This module pads each batch to a compiled size
with pad tokens, which the attention mask excludes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_serve.errors import wrong
from qnnbridge_serve.options import ServeSessionOptions
from qnnbridge_serve.repository import FolderKind, FolderModels, open_session, summary_of
from qnnbridge_serve.status import SessionStatus

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from qnnbridge import Host, InferenceSession
    from qnnbridge_host.model.collector import ModelScan


# --- the folder, as sentence-transformers writes it ---

Pooling = Literal["mean", "cls"]

_PLACES: Final = ("model.onnx", "onnx/model.onnx")
_POOLINGS: Final[Mapping[str, Pooling]] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
# Maximum number of tokens of a text if the folder does not specify it.
_TOKENS: Final = 512
# Larger limits are placeholders and count as missing: tokenizer_config.json often contains 10^30.
_ENDLESS: Final = 10**6
# Types of models whose first position is the id of the pad token plus one, so that fewer positions are left for
# tokens.
_SHIFTED: Final = ("roberta", "camembert", "mpnet")


@dataclasses.dataclass(frozen=True, slots=True)
class EmbeddingFolder:
    """Facts from the files of a folder.

    Args:
        model: path of the ONNX model.
        tokenizer: path of tokenizer.json.
        pooling: ``None`` if no file specifies it; the model's own pooling or the mean is then used.
        normalize: whether embeddings are scaled to length 1.
        most_tokens: maximum number of tokens of a text, including special tokens.
        lower: whether texts are converted to lower case before they are tokenized.
        prompt: prefix of each text.
        pad: text of the pad token.
    """

    model: Path
    tokenizer: Path
    pooling: Pooling | None
    normalize: bool
    most_tokens: int
    lower: bool
    prompt: str
    pad: str | None


def read_folder(folder: Path) -> EmbeddingFolder:
    """Read the files of a folder.

    Raise `NoSuchFile`, or `OptionError` if the folder needs unsupported computations.
    """
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        raise NoSuchFile(
            f"There is no tokenizer.json in {folder}.",
            fix="Save the model's fast tokenizer in this folder: "
            "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER).",
        )
    modules = _read(folder / "modules.json")
    pooling: Pooling | None = None
    normalize = True  # by default, normalise like OpenAI
    if isinstance(modules, list):
        normalize = False
        for one in modules:
            kind = str(one.get("type", "")).rpartition(".")[2] if isinstance(one, dict) else ""
            if kind == "Pooling":
                pooling = _pooling(folder / str(one.get("path", "1_Pooling")) / "config.json")
            elif kind == "Normalize":
                normalize = True
            elif kind != "Transformer":
                raise OptionError(
                    f"{folder} cannot be served: its modules.json contains the unsupported module {kind or one!r}.",
                    cause="The server computes only the modules Transformer, Pooling and Normalize.",
                )
    elif (folder / "1_Pooling" / "config.json").is_file():
        pooling = _pooling(folder / "1_Pooling" / "config.json")
    words = _mapping(folder / "tokenizer_config.json")
    sentences = _mapping(folder / "sentence_bert_config.json")
    said = _mapping(folder / "config_sentence_transformers.json")
    prompts, default = said.get("prompts"), said.get("default_prompt_name")
    prompt = prompts.get(default) if isinstance(prompts, dict) and default else None
    pad = words.get("pad_token")
    return EmbeddingFolder(
        model=_model(folder),
        tokenizer=tokenizer,
        pooling=pooling,
        normalize=normalize,
        most_tokens=_most_tokens(sentences, words, _mapping(folder / "config.json")),
        lower=sentences.get("do_lower_case") is True,
        prompt=prompt if isinstance(prompt, str) else "",
        pad=pad.get("content") if isinstance(pad, dict) else pad,
    )


def _model(folder: Path) -> Path:
    for place in _PLACES:
        if (folder / place).is_file():
            return folder / place
    found = sorted(folder.glob("*.onnx"))
    if len(found) != 1:
        raise NoSuchFile(
            f"{folder} has neither model.onnx nor onnx/model.onnx, and {len(found)} .onnx files instead of one.",
            fix="Export the encoder: optimum-cli export onnx --task feature-extraction -m MODEL FOLDER.",
        )
    return found[0]


def _pooling(path: Path) -> Pooling:
    said = _mapping(path)
    modes = [name for name, value in said.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(said.get("pooling_mode"), str):
        modes = [f"pooling_mode_{said['pooling_mode']}_token" + ("" if said["pooling_mode"] == "cls" else "s")]
    if len(modes) != 1 or modes[0] not in _POOLINGS or said.get("include_prompt") is False:
        raise OptionError(
            f"{path} specifies a pooling other than the mean of all tokens or the first token.",
            cause=f"Its pooling modes: {', '.join(modes) or 'none'}"
            + (", without the prompt." if said.get("include_prompt") is False else "."),
        )
    return _POOLINGS[modes[0]]


def _most_tokens(sentences: Mapping[str, Any], words: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    found = next(
        (
            value
            for value in (sentences.get("max_seq_length"), words.get("model_max_length"))
            if type(value) is int and 0 < value < _ENDLESS
        ),
        None,
    )
    positions = config.get("max_position_embeddings")
    if type(positions) is not int or positions < 1:
        return found or _TOKENS
    if any(kind in str(config.get("model_type", "")) for kind in _SHIFTED):
        # The pad token of these types of models is 1, so their positions begin at 2.
        positions -= 2
    return min(found or positions, positions)


def _mapping(path: Path) -> Mapping[str, Any]:
    found = _read(path)
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> Any:
    """Return the contents of a JSON file, or ``None`` if there is no such file."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"{path} cannot be read.", cause=str(error)) from None


Array = np.ndarray[Any, np.dtype[Any]]

# Default sizes for QNN without --bucket. Each pair of a length and a batch size is compiled as a separate model.
LENGTHS: Final = (32, 128)
BATCHES: Final = (1, 8)
# Maximum rows of a batch with free sizes, and maximum tokens including padding. Attention needs memory for each
# pair of tokens in a row.
FREE_BATCH: Final = 32
FREE_TOKENS: Final = FREE_BATCH * 512
# Maximum bytes per token. A text with more bytes than the allowed tokens can have is refused without tokenizing it.
_BYTES_A_TOKEN: Final = 400
_IDS, _MASK, _TYPES = "input_ids", "attention_mask", "token_type_ids"
_OUTPUTS: Final = ("last_hidden_state", "token_embeddings")


@dataclasses.dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a text. types: token type ids."""

    ids: Sequence[int]
    types: Sequence[int]


@dataclasses.dataclass(frozen=True, slots=True)
class BatchShapes:
    """Sizes that a batch may have, in ascending order; empty if any size is allowed.

    Args:
        batches: numbers of rows.
        lengths: numbers of columns.
        limit: maximum number of tokens of a text.
        masked: whether the model has a mask, so that a batch may contain texts of different lengths.
    """

    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    limit: int
    masked: bool = True

    def plan(self, lengths: Sequence[int]) -> Iterator[tuple[Sequence[int], int, int]]:
        """Split texts of these lengths into batches. Yield (indices of its texts, rows, columns) for each batch."""
        # Texts of similar lengths share a batch, since a batch is as long as its longest text.
        order = sorted(range(len(lengths)), key=lambda index: lengths[index])
        if not self.lengths:
            while order:
                part = order[: self._most]
                if not self.masked:
                    part = [index for index in part if lengths[index] == lengths[part[0]]]
                while not self.batches and len(part) > 1 and len(part) * lengths[part[-1]] > FREE_TOKENS:
                    part = part[:-1]
                order = order[len(part) :]
                yield part, self._rows(len(part)), lengths[part[-1]]
            return
        for size, group in itertools.groupby(order, lambda index: self._fitting(lengths[index])):
            left = list(group)
            while left:
                part, left = left[: self._most], left[self._most :]
                yield part, self._rows(len(part)), size

    @property
    def _most(self) -> int:
        return self.batches[-1] if self.batches else FREE_BATCH

    def _rows(self, count: int) -> int:
        return next((size for size in self.batches if size >= count), count)

    def _fitting(self, length: int) -> int:
        return next(size for size in self.lengths if size >= length)


class Embedder:
    """Loaded model for embeddings. Safe to use from any thread."""

    def __init__(
        self,
        name: str,
        folder: EmbeddingFolder,
        tokenizer: Tokenizer,
        session: InferenceSession,
        shapes: BatchShapes,
    ) -> None:
        self.name = name
        self._folder = folder
        self._tokenizer = tokenizer
        self._session = session
        self._shapes = shapes
        self._types = {node.name: np.int32 if "int32" in node.type else np.int64 for node in session.get_inputs()}
        self._output, self._pooled = _output_of(session, folder)
        padding = tokenizer.padding or {}
        named = tokenizer.token_to_id(folder.pad) if folder.pad else None
        self._pad = padding.get("pad_id", 0) if named is None else named
        # The last id may be larger than the size of the vocabulary, because ids may have gaps.
        self._last_id = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        # Switch off padding and truncation, which the tokenizer's file may request: `embed` pads batches itself,
        # and a text that is too long is refused instead of truncated.
        tokenizer.no_padding()
        tokenizer.no_truncation()

    @property
    def summary(self) -> str:
        pooling = "its own" if self._pooled else self._folder.pooling or "mean"
        return f"{pooling} pooling, {self._shapes.limit} tokens, {summary_of(self._session.placement)}"

    @property
    def parts(self) -> Mapping[str, SessionStatus]:
        return {"": SessionStatus(self._session.placement, self._session.verified)}

    def close(self) -> None:
        self._session.close()

    def tokens(self, text: str) -> Tokens:
        """Return the tokens of a text. Raise `Refused` if the text is too long."""
        if len(text) > self._shapes.limit * _BYTES_A_TOKEN:
            raise self._too_long(f"{len(text):,} characters")
        text = self._folder.prompt + text.strip()
        found = self._tokenizer.encode(text.lower() if self._folder.lower else text)
        return self._checked(Tokens(found.ids, found.type_ids))

    def given(self, ids: Sequence[int]) -> Tokens:
        """Return token ids from a client as tokens. Raise `Refused` if they are invalid or too many."""
        if max(ids) > self._last_id:
            raise wrong(f"input: there is no token {max(ids)}; the model's last token is {self._last_id}.", "input")
        return self._checked(Tokens(ids, [0] * len(ids)))

    def _checked(self, tokens: Tokens) -> Tokens:
        if not tokens.ids:
            raise wrong("A text in input has no tokens.", "input")
        if len(tokens.ids) > self._shapes.limit:
            raise self._too_long(f"{len(tokens.ids):,} tokens")
        return tokens

    def _too_long(self, size: str) -> Exception:
        text = f"A text in input has {size}; the model accepts at most {self._shapes.limit} tokens."
        return wrong(text, "input", "context_length_exceeded")

    def embed(self, texts: Sequence[Tokens], time_left: Callable[[], float | None]) -> Array:
        """Return the embeddings, one row of float32 for each text.

        time_left: returns the seconds until the deadline; raises an error after it.
        """
        found: list[Array] = [np.empty(0, np.float32)] * len(texts)
        for part, rows, columns in self._shapes.plan([len(one.ids) for one in texts]):
            chosen = [texts[index] for index in part]
            # Fill the remaining rows with copies of the last text: a row of pad tokens would have no tokens to
            # average.
            batch = chosen + [chosen[-1]] * (rows - len(chosen))
            feeds = {
                _IDS: _filled([one.ids for one in batch], columns, self._pad),
                _MASK: _filled([[1] * len(one.ids) for one in batch], columns, 0),
                _TYPES: _filled([one.types for one in batch], columns, 0),
            }
            typed = {name: feeds[name].astype(kind) for name, kind in self._types.items()}
            (states,) = self._session.run([self._output], typed, timeout=time_left())
            vectors = self._vectors(np.asarray(states).astype(np.float32), feeds[_MASK])
            # Ignore the additional rows at the end, which only fill the batch.
            for index, vector in zip(part, vectors, strict=False):
                found[index] = vector
        stacked = np.stack(found)
        if not np.isfinite(stacked).all():
            raise BridgeError(
                f"The model {self.name} returned numbers that are not finite.",
                fix="Compare the model's results with those of the CPU: qnnbridge verify.",
            )
        return stacked

    def _vectors(self, states: Array, mask: Array) -> Array:
        if self._pooled:
            return states
        if self._folder.pooling == "cls":
            return states[:, 0]
        weights = mask[:, :, None].astype(np.float32)
        # Use the same lower limits as sentence-transformers (1e-9) and PyTorch's `normalize` (1e-12 below), so that
        # the results are equal.
        return np.asarray((states * weights).sum(1) / np.maximum(weights.sum(1), 1e-9))

    def shortened(self, vectors: Array, dimensions: int | None) -> Array:
        """Truncate embeddings to `dimensions`, and normalise the result for a model with normalised embeddings.

        Raise `Refused` if the embeddings have fewer dimensions.
        """
        width = vectors.shape[1]
        if dimensions is not None:
            if dimensions > width:
                raise wrong(f"dimensions is {dimensions}; the model has {width}.", "dimensions")
            vectors = vectors[:, :dimensions]
        if not self._folder.normalize:
            return vectors
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def _filled(rows: Sequence[Sequence[int]], columns: int, value: int) -> Array:
    found = np.full((len(rows), columns), value, np.int64)
    for row, given in zip(found, rows, strict=True):
        row[: len(given)] = given
    return found


def _output_of(session: InferenceSession, folder: EmbeddingFolder) -> tuple[str, bool]:
    """Return the name of the output to read, and whether the model has pooled it.

    If no file specifies the pooling, a pooled output of the model is preferred.
    """
    ranks = {node.name: len(node.shape or ()) for node in session.get_outputs()}
    by_token = [name for name in _OUTPUTS if ranks.get(name) == 3]
    others = [name for name, rank in ranks.items() if rank == 3 and name not in (*_OUTPUTS, "logits")]
    by_token += others if len(others) == 1 else []
    pooled = [name for name in ("sentence_embedding",) if ranks.get(name) == 2]
    if pooled and folder.pooling is None:
        by_token = []
    if not by_token and not pooled:
        raise OptionError(
            f"The model has no output from which embeddings can be computed. Its outputs: {', '.join(ranks)}.",
            cause="The server needs an output with one vector per token (last_hidden_state, or a single other "
            "output of rank 3 that is not logits), or an output sentence_embedding.",
        )
    return (by_token or pooled)[0], not by_token


# --- loading ---


def open_embedder(
    name: str, place: Path, sizes: Mapping[str, Sequence[int]], options: ServeSessionOptions, host: Host
) -> Embedder:
    """Load a model for embeddings. Raise the errors of `qnnbridge.errors`."""
    from tokenizers import Tokenizer

    from qnnbridge_host.model.scan import scan_model

    folder = read_folder(place)
    try:
        tokenizer = Tokenizer.from_file(str(folder.tokenizer))
    except Exception as error:  # noqa: BLE001 - the library raises Exception itself
        raise OptionError(f"{folder.tokenizer} cannot be read.", cause=str(error)) from None
    scan = scan_model(folder.model, count_nodes=False)
    shapes, buckets = batch_shapes(scan, folder, sizes, options)
    session = open_session(folder.model, buckets, options, host)
    try:
        return Embedder(name, folder, tokenizer, session, shapes)
    except BaseException:
        session.close()
        raise


def batch_shapes(
    scan: ModelScan,
    folder: EmbeddingFolder,
    sizes: Mapping[str, Sequence[int]],
    options: ServeSessionOptions,
) -> tuple[BatchShapes, list[dict[str, int]]]:
    """Return the sizes of batches, and the buckets of a session for these sizes. Raise `OptionError`."""
    inputs = {node.name: node.shape for node in scan.inputs}
    unknown = inputs.keys() - {_IDS, _MASK, _TYPES}
    if unknown or _IDS not in inputs or any(shape is None or len(shape) != 2 for shape in inputs.values()):
        raise OptionError(
            f"The model's inputs are {', '.join(inputs)}, but a model for embeddings has {_IDS}, {_MASK} and "
            f"{_TYPES}, each with the shape [batch, length].",
        )
    on_qnn = options.provider == "qnn"
    limit = folder.most_tokens
    defaults = (BATCHES, (*(n for n in LENGTHS if n < limit), limit))
    found: list[tuple[int, ...]] = []
    keys: list[list[str]] = []
    used: set[str] = set()
    for axis, default in enumerate(defaults):
        declared = {name: shape[axis] for name, shape in inputs.items() if shape is not None}
        fixed = {options.dimensions.size_of(name, axis, size) for name, size in declared.items()}
        names = [size if isinstance(size, str) else f"{name}:{axis}" for name, size in declared.items()]
        known_as = [*names, *(f"{name}:{axis}" for name in inputs)]
        given = next((sizes[one] for one in known_as if one in sizes), None)
        used |= sizes.keys() & set(known_as)
        known = fixed - {None}
        if known:
            found.append((min(size for size in known if size is not None),))
            keys.append([])
        else:
            found.append(tuple(given) if given is not None else default if on_qnn else ())
            keys.append(list(dict.fromkeys(names)) if found[-1] else [])
    if sizes.keys() - used:
        raise OptionError(
            f"--bucket has a dimension that the model does not have: {', '.join(sorted(sizes.keys() - used))}.",
            fix=f"Its inputs: {', '.join(f'{name} {shape}' for name, shape in inputs.items())}.",
        )
    batches, lengths = found
    masked = _MASK in inputs
    if lengths and not masked:
        raise OptionError(
            f"The lengths are fixed, but the model has no input {_MASK}, so shorter texts cannot be padded.",
            cause="Padding a text would change its embedding.",
            fix=f"Export the model with {_MASK}; or with a free length, and serve it without --bucket on "
            f"--provider cpu.",
        )
    if lengths:
        limit = min(limit, lengths[-1])
    combinations = [
        {**dict.fromkeys(keys[0], batch), **dict.fromkeys(keys[1], length)}
        for batch in (batches or (0,))
        for length in (lengths or (0,))
    ]
    buckets = {tuple(one.items()): one for one in combinations if one}
    return BatchShapes(batches, lengths, limit, masked), list(buckets.values())


# --- the registry ---

EMBEDDING: Final = FolderKind(
    "embedding model",
    "embedding",
    running="Requests for embeddings that are being answered.",
    ended="Finished requests for embeddings, by outcome.",
    sums={"texts": "Texts embedded.", "tokens": "Tokens embedded."},
    outcomes=("ok", "error"),
)


def embedding_models(
    folders: Mapping[str, Path],
    buckets: Mapping[str, Mapping[str, Sequence[int]]],
    options: ServeSessionOptions,
    host: Host,
) -> FolderModels[Embedder]:
    """Return the registry of the models of `qnnbridge serve --embed`.

    buckets: sizes of free dimensions, by name of the model.
    """

    def load(name: str, place: Path) -> Embedder:
        return open_embedder(name, place, buckets.get(name, {}), options, host)

    return FolderModels(EMBEDDING, folders, load)
