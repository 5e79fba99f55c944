"""The command line of `chat`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools.command_line import command
from qnnbridge_tools.generation.options import ChatOptions
from qnnbridge_tools.options import Fallback, HostPython


@command
def chat(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with genai_config.json.")],
    options: ChatOptions,
    shared: Annotated[
        bool, typer.Option("--daemon", help="Use the daemon's host, which may have the model loaded.")
    ] = False,
    fallback: Fallback = "error",
    host_python: HostPython = None,
) -> None:
    """Talk to a model for text generation. Ctrl+C stops an answer, /quit ends."""
    import qnnbridge
    from qnnbridge import genai
    from qnnbridge_tools.generation import chat as talking

    def write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # one wrong byte of a pipe is no end of the conversation

    def read() -> str:
        if sys.stdin is None:
            raise EOFError
        return input("> " if sys.stdin.isatty() else "")

    with qnnbridge.connect(python=host_python) if shared else qnnbridge.Host(host_python) as host:
        model = genai.Model(folder, host=host, fallback=fallback)
        try:
            write(f"{model.info.label}: {talking.HELP}\n")
            talking.Chat(model, genai.Tokenizer(model), options, write).serve(read)
        finally:
            model.close()
