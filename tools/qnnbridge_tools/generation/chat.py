"""`qnnbridge chat`: a conversation with a model in the terminal.

The main thread reads lines and prints; a separate thread for each answer queries the model. So Ctrl+C arrives while
the main thread waits for text, never inside a call to the host, and stops only the answer.
"""

from __future__ import annotations

import dataclasses
import io
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.visible import visible_lines
from qnnbridge_tools import output, reporting
from qnnbridge_tools.command_line import Read, command
from qnnbridge_tools.generation.measuring import Pace
from qnnbridge_tools.options import AllowNative, Fallback, HostPython

if TYPE_CHECKING:
    from qnnbridge.genai import GenerationStats, Model, TextStream, Tokenizer


# --- the command line -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class SearchOptions:
    """Options for choosing the next token; ``None`` uses the value of the model's configuration."""

    temperature: Annotated[
        float | None,
        typer.Option(min=0, metavar="T", help="0 takes the most likely token. Default: the model's config."),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="P", help="Sample from the most likely tokens, up to a total probability of P."
        ),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", min=0, metavar="N", help="Seed of the random numbers.")] = (
        None
    )

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class ChatOptions:
    """Options of `chat`.

    Args:
        system: system prompt.
        max_tokens: largest number of tokens per answer.
        search: options of `qnnbridge.genai.generate`.
    """

    system: Annotated[str | None, typer.Option(metavar="TEXT", help="Instructions before the conversation.")] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Maximum number of tokens per answer. Default: as many as fit."),
    ] = None
    search: Annotated[Mapping[str, Any], Read(SearchOptions.given, SearchOptions)] = dataclasses.field(
        default_factory=dict
    )


@command
def chat(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with genai_config.json.")],
    options: ChatOptions,
    shared: Annotated[
        bool, typer.Option("--daemon", help="Use the daemon's host, which may have the model loaded.")
    ] = False,
    fallback: Fallback = "error",
    allow_native: AllowNative = (),
    host_python: HostPython = None,
) -> None:
    """Talk to a model for text generation. Ctrl+C stops an answer, /quit ends."""
    import qnnbridge
    from qnnbridge import genai

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # An invalid byte from a pipe must not end the conversation.

    def read() -> str:
        if sys.stdin is None:
            raise EOFError
        return input("> " if sys.stdin.isatty() else "")

    with qnnbridge.connect(python=host_python) if shared else qnnbridge.Host(host_python) as host:
        model = genai.Model(folder, host=host, fallback=fallback, allow_native=allow_native)
        try:
            write(f"{model.info.label}: {HELP}\n")
            Chat(model, genai.Tokenizer(model), options, write).serve(read)
        finally:
            model.close()


# --- the conversation -----------------------------------------------------------------------------------

HELP: Final = "/stats: speed and placement. /clear: forget the conversation. /quit: end. Ctrl+C stops an answer."
# Interval of checks for Ctrl+C in seconds: Windows does not deliver it to a thread that waits without a timeout.
LOOK_S: Final = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Answered:
    """Timing, numbers of tokens and finish reason of the last answer."""

    pace: Pace
    prompt_tokens: int
    cached_tokens: int
    finish_reason: str | None
    stats: GenerationStats


class SpokenAnswer:
    """One answer, generated in a separate thread. Text is in a queue; ``None`` marks the end."""

    def __init__(self, ask: Callable[[Callable[[TextStream], None]], TextStream]) -> None:
        """Start the answer.

        Args:
            ask: calls `generate` with its ``on_begin``.
        """
        self.pieces: queue.Queue[str | None] = queue.Queue()
        self.error: BaseException | None = None
        self.done: Answered | None = None
        self.text = ""
        self._ask = ask
        self._pace = Pace()
        self._stopping = threading.Event()
        self._stream: TextStream | None = None
        # Use a daemon thread, because a call that hangs in the host must not prevent the program from ending.
        self._thread = threading.Thread(target=self._work, name="qnnbridge chat answer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the answer before its next token, or the processing of the prompt before the model's next node."""
        # Set the flag, then read the stream. `_begin` sets the stream, then reads the flag, so that the answer is
        # always stopped.
        self._stopping.set()
        if self._stream is not None:
            self._stream.cancel()

    @property
    def ended(self) -> bool:
        """Whether the answer is complete and all of its text was read."""
        return not self._thread.is_alive() and self.pieces.empty()

    def join(self) -> None:
        while self._thread.is_alive():
            # Wait in steps: Windows does not deliver Ctrl+C to a thread that waits without a timeout.
            self._thread.join(LOOK_S)

    def _work(self) -> None:
        try:
            with self._ask(self._begin) as stream:
                self._pass_on(stream)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self.error = error
        finally:
            self.pieces.put(None)

    def _begin(self, stream: TextStream) -> None:
        self._stream = stream
        # Ctrl+C may have arrived before the stream existed.
        if self._stopping.is_set():
            stream.cancel()

    def _pass_on(self, stream: TextStream) -> None:
        seen = 0
        while not self._stopping.is_set():
            piece = next(stream, None)
            # Count tokens instead of pieces: a piece of text may consist of several tokens.
            if len(stream.tokens) > seen:
                self._pace.token(len(stream.tokens) - seen)
                seen = len(stream.tokens)
            if piece is None:
                break
            self.text += piece
            self.pieces.put(piece)
        if stream.finish_reason is None:
            # The answer has not ended: cancel it, and read once more to receive its finish reason and
            # statistics.
            stream.cancel()
            next(stream, None)
        self.done = Answered(
            self._pace, stream.prompt_tokens, stream.cached_tokens, stream.finish_reason, stream.stats
        )


class Chat:
    """A conversation. Used in the main thread only.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        options: options of the chat.
        write: prints text immediately.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, options: ChatOptions, write: Callable[[str], None]
    ) -> None:
        from qnnbridge.genai import GeneratorPool

        self._model = model
        self._tokenizer = tokenizer
        self._options = options
        self._write = write
        self._last: Answered | None = None
        self._messages: list[dict[str, str]] = []
        self._pool = GeneratorPool(1)
        self._clear()

    def serve(self, read: Callable[[], str]) -> None:
        """Handle lines until /quit or the end of the input.

        Args:
            read: returns a line, or raises `EOFError`.
        """
        while True:
            try:
                line = read().strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                self._write("\n(/quit ends the program)\n")
                continue
            if line == "/quit":
                return
            if line:
                self._take(line)

    def _take(self, line: str) -> None:
        if line == "/stats":
            self._print_stats()
        elif line == "/clear":
            self._clear()
        elif line.startswith("/"):
            self._write(HELP + "\n")
        else:
            self._answer(line)

    def _clear(self) -> None:
        self._pool.clear()
        system = self._options.system
        self._messages = [] if system is None else [{"role": "system", "content": system}]

    def _answer(self, line: str) -> None:
        from qnnbridge.genai import generate

        asked = [*self._messages, {"role": "user", "content": line}]
        options = self._options
        answer = SpokenAnswer(
            lambda on_begin: generate(
                self._model,
                asked,
                tokenizer=self._tokenizer,
                max_tokens=options.max_tokens,
                on_begin=on_begin,
                pool=self._pool,
                **options.search,
            )
        )
        stopped = self._print_pieces(answer)
        self._write(" (stopped)\n" if stopped else "\n")
        if isinstance(answer.error, BridgeError):
            # The conversation is unchanged: the next line may succeed.
            print(f"Error: {answer.error.shown()}", file=sys.stderr)
            return
        if answer.error is not None:
            raise answer.error
        self._last = answer.done
        # The text of a stopped answer is part of the conversation, too.
        self._messages = [*asked, {"role": "assistant", "content": answer.text}]

    def _print_pieces(self, answer: SpokenAnswer) -> bool:
        """Print the answer; return whether Ctrl+C stopped it."""
        stopped = False
        while True:
            try:
                piece = answer.pieces.get(timeout=LOOK_S)
                if piece is None:
                    # The thread puts the end marker into the queue just before it ends.
                    answer.join()
                    return stopped
                if not stopped:
                    self._write(visible_lines(piece))
            except queue.Empty:
                if answer.ended:  # Ctrl+C interrupted the read and lost the end marker.
                    return stopped
            except KeyboardInterrupt:
                stopped = True
                answer.stop()

    def _print_stats(self) -> None:
        output.print_pairs("Model", model_pairs(self._model))
        if self._last is None:
            print("No answer yet.")
        else:
            output.print_pairs("Last answer", answer_pairs(self._last))
        sys.stdout.flush()


def model_pairs(model: Model) -> list[tuple[str, str]]:
    info = model.info
    window = "" if info.window is None else f", windows of {info.window} tokens"
    pairs = [
        ("model", f"{info.label}, {info.layout} layout{window}, context of {info.context_length} tokens"),
        ("engine", f"onnxruntime-genai {info.genai}"),
    ]
    for one in model.placement:
        text = reporting.placement_text(one.placement) if one.wanted else "the CPU, according to the config"
        pairs.append((one.stage, text))
    return pairs


def answer_pairs(last: Answered) -> list[tuple[str, str]]:
    pace, stats = last.pace, last.stats
    first, rate = pace.to_first_token_s, pace.tokens_per_second
    pairs = [
        ("tokens", f"{last.prompt_tokens} of the prompt, {pace.tokens} of the answer ({last.finish_reason})"),
        ("first token", "none" if first is None else f"after {output.seconds(first)}"),
        ("speed", "unknown" if rate is None else f"{rate:.3g} tokens/s"),
    ]
    if last.cached_tokens:
        pairs.append(("reused", f"{last.cached_tokens} tokens of the prompt, from earlier turns"))
    if stats.restarts:
        again = "; sampling used a new seed" if stats.reseeded else ""
        pairs.append(("restarts", f"{stats.restarts} of the host{again}"))
    if stats.replays:
        pairs.append(("replays", f"{stats.replays}, with {stats.forced} tokens one by one"))
    return pairs
