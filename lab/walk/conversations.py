"""Walks over conversations: compare answers of the host's reused generators with new generators of
onnxruntime_genai.

Each new generator runs in this process, gets the whole prompt at once, and has no state of earlier prompts. All
tokens must be equal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from tests.genai.tiny_decoders import VOCABULARY, Sizes, write_model

import qnnbridge
from lab.walk.steps import Wrong
from qnnbridge import genai

CONTEXT: Final = 512
ADAPTERS: Final = ("one", "two")
# Guidance that allows answers of any length.
GUIDANCES: Final = (("regex", "[a-z ]+"), ("regex", "(ab|cd|efg)+[0-9]{3}[A-Z]*"))
# Range of random token ids. The special tokens have lower ids.
IDS: Final = range(4, 280)


def write_walked_model(folder: Path) -> Path:
    """Write a tiny decoder, and a file for each of the LoRA adapters `ADAPTERS`, which change its answers."""
    write_model(folder, "dynamic", sizes=Sizes(context=CONTEXT))
    path = folder / "model.onnx"
    model = onnx.load(path)
    (last,) = (node for node in model.graph.node if "logits" in node.output)
    last.output[list(last.output).index("logits")] = "without"
    model.graph.node.append(helper.make_node("Add", ["without", "delta"], ["logits"]))
    # Add an input with a default value, which an adapter replaces.
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(VOCABULARY, np.float32), "delta"))
    model.graph.input.append(helper.make_tensor_value_info("delta", onnx.TensorProto.FLOAT, [VOCABULARY]))
    onnx.save(model, path)
    for number, name in enumerate(ADAPTERS):
        delta = np.random.default_rng(number).standard_normal(VOCABULARY).astype(np.float32) * 3
        delta[: IDS.start] = 0
        adapter = onnxruntime.AdapterFormat()
        adapter.set_parameters({"delta": onnxruntime.OrtValue.ortvalue_from_numpy(delta)})
        adapter.export_adapter(str(folder / f"{name}.onnx_adapter"))
    return folder


class Pair:
    """A model in this process (onnxruntime_genai) and in a host, with a pool of the host's generators."""

    def __init__(self, folder: Path, host: qnnbridge.Host) -> None:
        import onnxruntime_genai

        self.folder = folder
        self._library = onnxruntime_genai
        self.there, self.here = genai.Model(folder, host=host), onnxruntime_genai.Model(str(folder))
        self.tokenizer = genai.Tokenizer(self.there)
        self._tokenizer_here = onnxruntime_genai.Tokenizer(self.here)
        self.pool = genai.GeneratorPool(4)

    def fresh(
        self,
        tokens: Sequence[int],
        count: int,
        guidance: tuple[str, str] | None = None,
        adapter: tuple[Any, str] | None = None,
        **search: Any,
    ) -> list[int]:
        """Return the answer of a new generator of onnxruntime_genai."""
        params = self._library.GeneratorParams(self.here)
        params.set_search_options(max_length=len(tokens) + count, **search)
        if guidance is not None:
            params.set_guidance(*guidance)
        generator = self._library.Generator(self.here, params)
        if adapter is not None:
            generator.set_active_adapter(*adapter)
        generator.append_tokens(np.array(tokens, np.int32))
        made: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            made.append(int(generator.get_next_tokens()[0]))
        return made

    def text_of(self, answer: Sequence[int]) -> str:
        """Return the text of an answer, decoded by onnxruntime_genai. The end token has no text."""
        stream, ends = self._tokenizer_here.create_stream(), self.there.info.eos
        return "".join(stream.decode(token) for token in answer if token not in ends)

    def begin(self, tokens: Sequence[int], count: int, **options: Any) -> genai.TextStream:
        """Begin to generate an answer in the host with a generator of the pool; return the stream."""
        given = {"temperature": 0, "pool": self.pool, **options}
        return genai.generate(self.there, tokens, tokenizer=self.tokenizer, max_tokens=count, **given)

    def ask(self, tokens: Sequence[int], count: int, **options: Any) -> genai.TextStream:
        """Return a complete answer of the host, with a generator of the pool."""
        with self.begin(tokens, count, **options) as stream:
            for _ in stream:
                pass
        return stream

    def adapters_here(self) -> Any:
        """Load the adapters of `write_walked_model` in this process."""
        return self._with_files(self._library.Adapters(self.here))

    def adapters_there(self) -> Any:
        """Load the adapters of `write_walked_model` in the host."""
        return self._with_files(genai.Adapters(self.there))

    def _with_files(self, adapters: Any) -> Any:
        for name in ADAPTERS:
            adapters.load(str(self.folder / f"{name}.onnx_adapter"), name)
        return adapters


# --- one client ---


@dataclasses.dataclass
class Counts:
    """Counts of a walk. compared: tokens compared with the reference. cached: prompt tokens that were not processed
    again."""

    compared: int = 0
    cached: int = 0
    kills: int = 0
    cancelled: int = 0

    def __add__(self, other: Counts) -> Counts:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Counts(*(a + b for a, b in pairs))


class Client:
    """A client whose conversations grow, branch, are shortened, change parameters, are cancelled and outlive the
    host.

    Args:
        kill: kills the host; ``None`` for a walk without kills.
    """

    def __init__(self, pair: Pair, seed: int, kill: Callable[[], object] | None = None) -> None:
        self._pair, self._kill = pair, kill
        self._dice = random.Random(seed)
        self._salt = str(seed % 2)
        self._talks: list[list[int]] = [self._words(12)]
        self.counts = Counts()

    def step(self) -> None:
        """Request one answer. Raise `Wrong` if it differs from that of a new generator."""
        dice, pair = self._dice, self._pair
        talk = list(dice.choice(self._talks))
        if dice.random() < 0.25:
            talk = talk[: dice.randint(1, len(talk))]
        if len(talk) > CONTEXT - 60:
            talk = talk[:20]
        talk += self._words(dice.randint(1, 12))
        count = dice.randint(1, 24)
        if dice.random() < 0.1:
            self._cancel(talk, count)
        dies = self._kill is not None and dice.random() < 0.1
        if dies and dice.random() < 0.5:
            self._die()
            dies = False
        options, search = self._options()
        with pair.begin(talk, count, cache_salt=self._salt, **options) as answer:
            next(answer, None)
            # Do not kill the host during sampling, because the next host draws different random numbers.
            if dies and not search.get("do_sample"):
                self._die()
            for _ in answer:
                pass
        if "random_seed" in search or not search.get("do_sample"):
            expected = pair.fresh(talk, count, options.get("guidance"), **search)
            if answer.tokens != expected:
                raise Wrong(f"{talk} with {options} gave {answer.tokens}, expected {expected}")
            self.counts.compared += len(answer.tokens)
        if answer.text != self._pair.text_of(answer.tokens):
            raise Wrong(f"{talk} with {options} gave {answer.tokens} as {answer.text!r}")
        self.counts.cached += answer.cached_tokens
        self._talks = [*self._talks[-5:], [*talk, *answer.tokens]]

    def _options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return random parameters for `generate`, and the equivalent search options for onnxruntime_genai."""
        dice = self._dice
        options: dict[str, Any] = {}
        search: dict[str, Any] = {"do_sample": False}
        way = dice.random()
        if way < 0.2:
            options["repetition_penalty"] = search["repetition_penalty"] = 1.3
        elif way < 0.4:
            options["guidance"] = dice.choice(GUIDANCES)
        elif way < 0.6:
            drawn = {"top_k": 20, "temperature": 1.1}
            options |= drawn
            search |= {**drawn, "do_sample": True}
            # An answer without a seed cannot be compared. It is still useful: later answers reuse its generator.
            if way < 0.5:
                options["seed"] = search["random_seed"] = dice.randrange(1000)
        return options, search

    def _cancel(self, talk: list[int], count: int) -> None:
        options = {"guidance": GUIDANCES[0]} if self._dice.random() < 0.3 else {}
        with self._pair.begin(talk, count, cache_salt=self._salt, **options) as stream:
            next(stream, None)
            stream.cancel()
            with contextlib.suppress(StopIteration):
                next(stream)
        self.counts.cancelled += 1

    def _die(self) -> None:
        assert self._kill is not None
        self._kill()
        self.counts.kills += 1

    def _words(self, count: int) -> list[int]:
        return [self._dice.choice(IDS) for _ in range(count)]


class AdapterClient(Client):
    """A client with one generator, whose adapter is changed within a conversation, and which is rewound and
    continued."""

    def __init__(self, pair: Pair, seed: int, kill: Callable[[], object] | None = None) -> None:
        super().__init__(pair, seed, kill)
        self._here, self._there = pair.adapters_here(), pair.adapters_there()
        self._begin()

    def _begin(self) -> None:
        params = genai.GeneratorParams(self._pair.there)
        params.set_search_options(do_sample=False, max_length=CONTEXT)
        self._generator, self._history, self._active = genai.Generator(self._pair.there, params), list[int](), ""

    def step(self) -> None:
        """Change adapter, prompt or position, and generate.

        Raise `Wrong` if tokens differ from those of a new generator.
        """
        dice = self._dice
        if len(self._history) > CONTEXT - 60:
            self._generator.close()
            self._begin()
        if self._history and dice.random() < 0.3:
            length = dice.randint(1, len(self._history))
            self._generator.rewind_to(length)
            del self._history[length:]
        if dice.random() < 0.3:
            self._active = dice.choice(ADAPTERS)
            self._generator.set_active_adapter(self._there, self._active)
        # Append a prompt, or continue the answer: with another adapter, or from an earlier position.
        if dice.random() < 0.7 or not self._history or self._generator.is_done():
            words = self._words(dice.randint(1, 12))
            self._generator.append_tokens(words)
            self._history += words
        count = dice.randint(1, 16)
        adapter = (self._here, self._active) if self._active else None
        expected = self._pair.fresh(self._history, count, None, adapter, do_sample=False)
        made: list[int] = []
        dies = dice.randrange(count) if self._kill is not None and dice.random() < 0.1 else -1
        while len(made) < count and not self._generator.is_done():
            if len(made) == dies:
                self._die()
            self._generator.generate_next_token()
            made += map(int, self._generator.get_next_tokens())
        if made != expected:
            raise Wrong(f"{self._history} with the adapter {self._active!r} gave {made}, expected {expected}")
        self._history = [int(token) for token in self._generator.get_sequence(0)]
        self.counts.compared += len(made)


# --- several clients at the same time ---


@contextlib.contextmanager
def _failing(errors: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        errors.append(error)


def walk(clients: Sequence[Client], tokens: int) -> Counts:
    """Let each client walk in a separate thread until the clients have compared `tokens` tokens in total."""
    errors: list[BaseException] = []

    def run(client: Client) -> None:
        with _failing(errors):
            while client.counts.compared < tokens / len(clients) and not errors:
                client.step()

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum((client.counts for client in clients), Counts())


def conversations(tokens: int, seed: int, folder: Path) -> Counts:
    """Walk in a host, in a host that is killed repeatedly, and through a daemon; return the sum of the counts."""
    from tests.daemon.brokers import lab
    from tests.genai.kills import Killer

    write_walked_model(folder)

    def clients(pair: Pair) -> list[Client]:
        return [Client(pair, seed), Client(pair, seed + 1), AdapterClient(pair, seed + 2)]

    with qnnbridge.Host() as host:
        counts = walk(clients(Pair(folder, host)), tokens * 2 // 5)
    with qnnbridge.Host() as host:
        # Run one client at a time. A prompt that runs during two crashes is refused, even if another client caused
        # them.
        pair, killer = Pair(folder, host), Killer(host)
        counts += walk([Client(pair, seed + 3, killer.kill)], tokens // 5)
        counts += walk([AdapterClient(pair, seed + 4, killer.kill)], tokens // 10)
    with lab(qnnbridge.Host()) as made:
        counts += walk(clients(Pair(folder, made.client())), tokens // 5)
        killer = Killer(made.npu_host)
        counts += walk([Client(Pair(folder, made.client()), seed + 5, killer.kill)], tokens // 10)
    return counts
