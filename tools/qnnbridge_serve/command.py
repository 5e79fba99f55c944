"""`qnnbridge serve`: models over HTTP, for any language, load balancers and KServe."""

from __future__ import annotations

from qnnbridge_serve.options import ServeOptions
from qnnbridge_tools.command_line import command


@command
def serve(given: ServeOptions) -> None:
    """Serve models over HTTP: Open Inference Protocol v2 (KServe, Triton); OpenAI's: --llm, --embed, --speech."""
    from qnnbridge_serve import server

    server.require_packages(embeddings=bool(given.embedders), speech=bool(given.recognizers))
    server.check_exposure(given.address, given.token_file)
    options = given.with_files()
    server.check_dimensions(options)
    server.quiet_warnings()
    server.serve(options)
