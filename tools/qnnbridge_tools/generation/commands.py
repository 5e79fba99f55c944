"""The command line of `chat`."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import Fallback, HostPython, OnCpu


def chat(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder with genai_config.json.")],
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instructions before the conversation.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of an answer; default as many as fit.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, metavar="T", help="0 takes the most likely token; default as the config.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, metavar="P", help="Only the most likely tokens, up to P in sum.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, metavar="N", help="Of the random numbers.")] = None,
    shared: Annotated[
        bool, typer.Option("--daemon", help="Use the daemon's host, which may have it loaded.")
    ] = False,
    fallback: Fallback = OnCpu.ERROR,
    host_python: HostPython = None,
) -> None:
    """Talk to a model for text generation. Ctrl+C stops an answer, /quit ends."""
    with reporting.work():
        import qnnbridge
        from qnnbridge import genai
        from qnnbridge_tools import arguments
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

        arguments.check_number("--temperature", temperature)
        arguments.check_number("--top-p", top_p)
        search = {"temperature": temperature, "top_p": top_p, "seed": seed}
        options = talking.ChatOptions(system, max_tokens, {k: v for k, v in search.items() if v is not None})
        with qnnbridge.connect(python=host_python) if shared else qnnbridge.Host(host_python) as host:
            model = genai.Model(folder, host=host, fallback=fallback.value)
            try:
                write(f"{model.info.label}: {talking.HELP}\n")
                talking.Chat(model, genai.Tokenizer(model), options, write).serve(read)
            finally:
                model.close()
