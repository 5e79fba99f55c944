"""The command `qnnbridge serve`: listen, load the models, serve requests, and clean up at the end.

The main thread runs the event loop. Another thread loads the models of the command line, so that the server answers
health requests during loading. A signal stops listening; running requests have `drain_s` seconds to finish, then
sessions and host are closed.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_protocol.errors import BridgeError, OptionError
from qnnbridge_protocol.installing import install_command
from qnnbridge_serve.options import Address, ServeOptions, listen, url_of
from qnnbridge_tools import arguments
from qnnbridge_tools.command_line import command

if TYPE_CHECKING:
    import uvicorn

    from qnnbridge import Host
    from qnnbridge_serve.repository import Registry

LOADER_END_TIMEOUT_S: Final = 5.0
# Seconds after which an idle connection is closed. A load balancer must have a shorter limit: otherwise it may send
# a request while the server closes the connection.
KEEP_ALIVE_TIMEOUT_S: Final = 75


@command
def serve(given: ServeOptions) -> None:
    """Serve models over HTTP, as KServe, Triton and OpenAI do. For OpenAI's clients: --llm, --embed, --speech."""
    require_packages(embeddings=bool(given.embedders), speech=bool(given.recognizers))
    check_exposure(given.address, given.token_file)
    options = given.with_files()
    check_dimensions(options)
    from qnnbridge import CacheWarning, CpuFallbackWarning

    # Suppress these warnings: the line that is printed for each model, and the log, contain the same facts.
    warnings.simplefilter("ignore", CpuFallbackWarning)
    warnings.simplefilter("ignore", CacheWarning)
    serve_models(options)


def require_packages(*, embeddings: bool = False, speech: bool = False) -> None:
    """Raise `BridgeError` with the extra to install if a package is missing."""
    needed = dict.fromkeys(("starlette.applications", "uvicorn", "msgspec"), "serve")
    if speech:
        needed |= {"python_multipart": "serve", "tokenizers": "speech"}
    if embeddings:
        needed["tokenizers"] = "embeddings"
    name = ""
    try:
        for name in needed:
            importlib.import_module(name)
    except ImportError as error:
        extra = needed[name]
        raise BridgeError(
            f"qnnbridge serve needs {error.name}, which this Python does not have: {sys.executable}.",
            cause=f"The package belongs to the extra [{extra}].",
            fix=install_command(extra, python=sys.executable),
        ) from None


def check_exposure(address: Address, token_file: Path | None) -> None:
    """Raise `OptionError` if other machines could use the server without a token."""
    if not address.loopback and token_file is None:
        raise OptionError(
            f"{address.host} can be reached from other machines, and there is no token.",
            cause="Every machine in the network could use the models.",
            fix="Give --token-file FILE, or serve this machine only: --http 127.0.0.1:8000.",
        )


def check_dimensions(options: ServeOptions) -> None:
    """Raise `OptionError` for a `--dim` that no model has, or that has the form INPUT:AXIS."""
    if by_axis := [f"{name}:{axis}" for name, axis in options.sessions.dimensions.by_axis]:
        raise OptionError(
            f"--dim {by_axis[0]} sets a size by input and axis, but served models accept sizes by name only.",
            fix=f'Serve a model with fixed sizes: qnnbridge fix MODEL -o FIXED.onnx --dim "{by_axis[0]}=SIZE"',
        )
    if options.sessions.dimensions.by_name:
        from qnnbridge_serve.embeddings import read_folder

        embedders = [read_folder(folder).model for folder in options.embedders.values()]
        arguments.read_models([*(file.path for file in options.files), *embedders], options.sessions.dimensions)


def serve_models(options: ServeOptions) -> None:
    """Serve until a signal ends the server. Raise the error that prevented serving."""
    listener = listen(options.address)
    try:
        # Listen before the host is started, so that a used port is reported immediately and early clients wait in
        # the backlog.
        listener.listen(128)
        # Import this only after `require_packages` has checked for the packages of the extra.
        from qnnbridge_serve.app import HostProbe, InferenceService, make_app
        from qnnbridge_serve.embeddings import embedding_models
        from qnnbridge_serve.openai_endpoints import EmbeddingService, LanguageService
        from qnnbridge_serve.openai_speech import SpeechService
        from qnnbridge_serve.repository import (
            Repository,
            daemon_figures,
            language_models,
            open_host,
            open_model,
            speech_models,
        )

        host = open_host(options.where, options.host_python)
        try:
            repository = Repository(options.files, lambda file: open_model(file, options.sessions, host))
            models = language_models(options.language_models, host, options.sessions.fallback, options.allow_native)
            embedders = embedding_models(options.embedders, options.embedder_buckets, options.sessions, host)
            hearing = speech_models(options.recognizers, options.sessions, host)

            service = InferenceService(
                repository,
                HostProbe(host),
                options.limits,
                control=options.control,
                language=LanguageService(models, options.limits, options.media),
                embeddings=EmbeddingService(embedders, options.limits),
                speech=SpeechService(hearing, options.limits),
                figures=daemon_figures(host) if host.is_daemon else None,
            )
            server = _server(make_app(service, options.token, options.origins, page=options.page), options)
            _run(server, listener, (repository, models, embedders, hearing), host, options)
        finally:
            host.close()
    finally:
        listener.close()


def _server(app: object, options: ServeOptions) -> uvicorn.Server:
    import asyncio

    import uvicorn

    from qnnbridge_serve.http_protocol import HttpProtocol

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Let the event loop accept waiting connections first: closing the listener would reset them.
            await asyncio.sleep(0)
            await super().shutdown(sockets)

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    if options.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)

    async def ended_quietly(scope: Any, receive: Any, send: Any) -> None:
        """Hide the cancellation of unfinished answers at shutdown, for which uvicorn would log a traceback."""
        with contextlib.suppress(asyncio.CancelledError):
            await app(scope, receive, send)  # type: ignore[operator]

    config = uvicorn.Config(
        ended_quietly,
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        # uvicorn's own configuration would replace the handlers that were set above.
        log_config=None,
        access_log=options.access_log,
        # Ignore X-Forwarded-For, with which clients could forge their address.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
        # uvicorn accepts whole seconds only.
        timeout_graceful_shutdown=max(1, round(options.drain_s)),
    )
    return Server(config)


def _run(
    server: uvicorn.Server,
    listener: socket.socket,
    registries: Sequence[Registry[Any]],
    host: Host,
    options: ServeOptions,
) -> None:
    failed: dict[str, BridgeError] = {}

    def load() -> None:
        for registry in registries:
            if not failed or options.keep_going:
                failed.update(registry.load_all(_say))
        if failed and not options.keep_going:
            server.should_exit = True
            return
        for name, error in failed.items():
            _say(f"{name}: cannot be loaded. {error}")
        _say("Ready.")

    signalled_end = _end_on_signals(server)
    _say(f"Listening on {url_of(listener)}, {_interfaces(options)}. Ctrl+C ends it.")
    loader = threading.Thread(target=load, name="qnnbridge serve start", daemon=True)
    loader.start()
    try:
        server.run([listener])
    finally:
        for registry in registries:
            registry.close()
        # Close the host first: a model that is still being loaded then fails, so `join` does not wait for it.
        host.close()
        loader.join(LOADER_END_TIMEOUT_S)
    if not options.keep_going and not signalled_end.is_set():
        for name, error in failed.items():
            error.message = f"Model {name}: {error.message}"
            raise error


def _interfaces(options: ServeOptions) -> str:
    names = ["Open Inference Protocol v2"] if options.files else []
    if options.language_models or options.embedders or options.recognizers:
        names.append("OpenAI's interface at /v1")
    if options.page:
        names.append("a page for browsers")
    return ", ".join(names)


def _end_on_signals(server: uvicorn.Server) -> threading.Event:
    """Install handlers that end the server and set the returned event.

    uvicorn has its own handlers while it runs; at its end it restores these handlers and raises the signals again.
    These handlers then keep a signal from interrupting the cleanup.
    """
    signalled = threading.Event()

    def end(number: int, frame: object) -> None:
        server.should_exit = True
        signalled.set()

    # SIGBREAK is Ctrl+Break, which exists on Windows only.
    for name in ("SIGINT", "SIGTERM", "SIGBREAK"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), end)
    return signalled


def _say(text: str) -> None:
    print(text, flush=True)
