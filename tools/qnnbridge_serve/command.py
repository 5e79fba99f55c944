"""`qnnbridge serve`: models over HTTP, for any language, load balancers and KServe."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import Dims, Fallback, HostPython, OnCpu, Provider, ProviderName, ProviderOptions


class Where(str, enum.Enum):
    DAEMON = "daemon"
    PRIVATE = "private"


def serve(
    http: Annotated[
        str, typer.Option(metavar="ADDR", help="HOST:PORT to listen on; other than loopback needs --token-file.")
    ] = "127.0.0.1:8000",
    models: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME=PATH", help="A model and its name. Repeatable.")
    ] = None,
    folders: Annotated[
        list[Path] | None,
        typer.Option("--models", metavar="FOLDER", help="All of NAME.onnx and NAME/VERSION/model.onnx in it."),
    ] = None,
    language_models: Annotated[
        list[str] | None,
        typer.Option("--llm", metavar="NAME=FOLDER", help="A language model and its name. Repeatable."),
    ] = None,
    embedders: Annotated[
        list[str] | None,
        typer.Option("--embed", metavar="NAME=FOLDER", help="A model for embeddings and its name. Repeatable."),
    ] = None,
    recognizers: Annotated[
        list[str] | None,
        typer.Option("--speech", metavar="NAME=FOLDER", help="Whisper for speech, and its name. Repeatable."),
    ] = None,
    buckets: Annotated[
        list[str] | None,
        typer.Option(
            "--bucket", metavar="NAME:DIM=16,32", help="Sizes of a free dimension of a model. May be repeated."
        ),
    ] = None,
    where: Annotated[
        Where, typer.Option("--host", help="The daemon that applications share, or a host of its own.")
    ] = Where.DAEMON,
    provider: ProviderName = Provider.QNN,
    provider_options: ProviderOptions = None,
    fallback: Fallback = OnCpu.ERROR,
    dims: Dims = None,
    host_python: HostPython = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Clients must show the token in it; its mode must be 0600.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds for each request; 0 for no limit.")
    ] = 60,
    answer_timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds for an answer of --llm or --speech; 0 for none.")
    ] = 600,
    max_request: Annotated[str, typer.Option(metavar="SIZE", help="Largest request: 500M, 2G.")] = "256M",
    threads: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Requests in the host at once.")] = 8,
    queue: Annotated[int, typer.Option(min=0, metavar="N", help="Requests that wait; more are refused.")] = 256,
    drain: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds that requests under way may take at the end.")
    ] = 30,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Serve the other models if one cannot be loaded at the start.")
    ] = False,
    control: Annotated[
        bool, typer.Option("--model-control/--no-model-control", help="Whether clients may load and unload models.")
    ] = True,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A page in a browser that may use it: http://localhost:3000."),
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="One line on stderr for each request.")] = False,
) -> None:
    """Serve models over HTTP: Open Inference Protocol v2 (KServe, Triton); OpenAI's: --llm, --embed, --speech."""
    with reporting.work():
        from qnnbridge_serve import folder_models, options, repository, server
        from qnnbridge_tools import arguments

        arguments.check_seconds("--timeout", timeout)
        arguments.check_seconds("--drain", drain)
        arguments.check_seconds("--answer-timeout", answer_timeout)
        server.require_packages(embeddings=bool(embedders), speech=bool(recognizers))
        place = options.read_address(http)
        server.check_exposure(place, token_file)
        from qnnbridge_serve.app import ServiceLimits

        by_folder = bool(language_models or embedders or recognizers)
        files = options.find_models(models or (), folders or (), optional=by_folder)
        generating = folder_models.read_names("--llm", language_models or ())
        embedding = folder_models.read_names("--embed", embedders or ())
        hearing = folder_models.read_names("--speech", recognizers or ())
        folder_models.refuse_same_names({"--llm": generating, "--embed": embedding, "--speech": hearing})
        sizes = options.read_buckets(buckets or (), [*(file.name for file in files), *embedding])
        files = [dataclasses.replace(file, buckets=sizes.get(file.name, {})) for file in files]
        if not files and not embedding and not hearing:
            of_files = {"--provider": provider is not Provider.QNN, "--provider-option": bool(provider_options)}
            arguments.refuse_together("--llm without --model", of_files)
        given = server.ServeOptions(
            address=place,
            token=options.read_token(token_file) if token_file is not None else None,
            files=files,
            language_models=generating,
            embedders=embedding,
            embedder_buckets={name: sizes[name] for name in embedding if name in sizes},
            recognizers=hearing,
            sessions=repository.ServeSessionOptions(
                providers=(f"{provider.name}ExecutionProvider",),
                provider_options=arguments.read_provider_options(provider_options or ()),
                fallback=fallback.value,
                dimensions=arguments.read_dimensions(dims or ()),
            ),
            where=where.value,
            host_python=host_python,
            limits=ServiceLimits(
                timeout_s=timeout or None,
                most_bytes=server.read_size(max_request),
                threads=threads,
                queue=queue,
                answer_timeout_s=answer_timeout or None,
            ),
            drain_s=drain,
            keep_going=keep_going,
            control=control,
            access_log=access_log,
            origins=options.read_origins(allow_origin or ()),
        )
        server.check_dimensions(given)
        server.quiet_warnings()
        server.serve(given)
