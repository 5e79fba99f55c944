"""Parse the command line of `qnnbridge serve`: address, token, model files and limits. No model is loaded."""

from __future__ import annotations

import dataclasses
import errno
import functools
import hmac
import ipaddress
import itertools
import os
import re
import socket
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import BridgeError, NoSuchFile, OptionError
from qnnbridge_protocol.model_records import PREPARED_MANIFEST, absolute_model_path
from qnnbridge_tools import arguments
from qnnbridge_tools.command_line import APART, Read
from qnnbridge_tools.options import AllowNative, Fallback, HostPython, NamedDims, ProviderName, ProviderOptions

Where = Literal["daemon", "private"]

DEFAULT_ADDRESS: Final = "127.0.0.1:8000"
_PORT: Final = re.compile(r"[0-9]{1,5}")
_ORIGIN: Final = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/\s@?#A-Z]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Address to listen on. loopback: whether it can be reached from this machine only."""

    family: socket.AddressFamily
    host: str
    port: int
    loopback: bool


def read_address(text: str) -> Address:
    """Parse `HOST:PORT`, `[IPv6]:PORT`, or a port for the loopback address. Raise `OptionError` for other texts."""
    host, colon, port_text = text.rpartition(":")
    if not _PORT.fullmatch(port_text) or int(port_text) > 65535 or (colon and not host):
        raise OptionError(
            f'--http "{text}" is not an address.',
            fix=f"Give HOST:PORT, for example {DEFAULT_ADDRESS}, or 0.0.0.0:8000 for all addresses.",
        )
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host or "127.0.0.1"
    try:
        found = socket.getaddrinfo(name, int(port_text), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OptionError(f'--http "{text}": {name} is not an address of this machine.', cause=str(error)) from None
    family, _, _, _, place = found[0]
    return Address(
        family, str(place[0]), int(port_text), ipaddress.ip_address(str(place[0]).split("%")[0]).is_loopback
    )


def read_origins(texts: Sequence[str]) -> tuple[str, ...]:
    """Check the values of `--allow-origin`.

    Each value must be an origin as browsers send it: scheme, name, and the port unless it is the scheme's default.
    """
    for text in texts:
        if not _ORIGIN.fullmatch(text):
            raise OptionError(
                f'--allow-origin "{text}" is not the origin of a page.',
                cause="A browser sends scheme, name and port, in lower case and without a path.",
                fix="For example --allow-origin http://localhost:3000, or app://obsidian.md for an application.",
            )
    return tuple(texts)


def listen(address: Address) -> socket.socket:
    """Return a socket bound to the address. Raise `BridgeError` if that fails."""
    # Pass the protocol: otherwise, asyncio does not switch off Nagle's algorithm, which delays answers by 40 ms.
    listener = socket.socket(address.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:  # on Windows, SO_REUSEADDR would let another program use the same port
            listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", -5), 1)
        # Accept IPv6 only: by default, [::] also accepts IPv4 on Linux, but not on Windows.
        if address.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        taken = error.errno in (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", None))
        raise BridgeError(
            f"The server cannot listen on {shown(address.host, address.port)}.",
            cause="Another program listens on this address." if taken else error.strerror or str(error),
            fix="Give another address with --http, or stop the program that listens on this address."
            if taken
            else "Give another --http address.",
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{shown(host, port)}"


def shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


MOST_BYTES: Final = 4096
# A token has at least 16 characters, which are 96 random bits if `secrets.token_urlsafe` created them.
_TOKEN: Final = re.compile(rb"[\x21-\x7e]{16,1024}")
_HOW: Final = (
    'Create a token file: (umask 077; python -c "import secrets; print(secrets.token_urlsafe(32))" > FILE), '
    "and give it with --token-file FILE."
)


def read_token(path: Path) -> bytes:
    """Return the token in a file. Raise `OptionError` if other users can read the file or the token is unsafe."""
    try:
        with open(path, "rb") as file:
            # Use the status of the open file: the path may refer to another file by now.
            status = os.fstat(file.fileno())
            text = file.read(MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(f"There is no token file {path}.", **why_missing(path, _HOW)) from None
    except OSError as error:
        raise OptionError(f"The token file {path} cannot be read.", cause=error.strerror) from None
    _check_owner(path, status)
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        raise OptionError(
            f"{path} contains no valid token: one line of 16 to 1024 ASCII characters without spaces is needed.",
            fix=_HOW,
        )
    return token


def _check_owner(path: Path, status: os.stat_result) -> None:
    if sys.platform == "win32":  # the mode shows no access rights on Windows, where a user's folders are private
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise OptionError(
            f"The token file {path} can be read by others: its mode is {mode:04o}.", fix=f"chmod 600 {path}"
        )
    if status.st_uid not in (os.getuid(), 0):
        raise OptionError(f"The token file {path} belongs to another user.", fix="Use a file of your own.")


def shows_token(authorization: bytes | None, token: bytes) -> bool:
    """Return whether an ``Authorization`` header contains the token. Runs in constant time."""
    # Compare the token even if the scheme is wrong, so that the time does not depend on the scheme.
    scheme, _, given = (authorization or b"").partition(b" ")
    return hmac.compare_digest(given.strip(), token) and scheme.lower() == b"bearer"


DEFAULT_VERSION: Final = "1"
_NAME: Final = re.compile(r"[^/\x00-\x1f\x7f]+")
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFile:
    """Model file of the command line. buckets: sizes of free dimensions, by name."""

    name: str
    path: Path
    version: str = DEFAULT_VERSION
    buckets: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)


def find_models(texts: Iterable[str], folders: Iterable[Path], *, optional: bool = False) -> list[ModelFile]:
    """Return the models of `--model` and `--models`, in order.

    Args:
        texts: values of `--model`.
        folders: values of `--models`.
        optional: whether to return an empty list instead of raising an error if there is no model.

    Raises:
        OptionError: there is no model, or a name is invalid or used twice.
        NoSuchFile: a file or folder does not exist.
    """
    found = [_named(text) for text in texts]
    for folder in folders:
        found += _in_folder(folder)
    if not found and not optional:
        raise OptionError(
            "There is no model to serve.", fix="Give --model NAME=FILE.onnx, --models FOLDER or --llm NAME=FOLDER."
        )
    seen: dict[str, ModelFile] = {}
    for model in found:
        if not _NAME.fullmatch(model.name):
            raise OptionError(f"{model.name!r} cannot be a model's name in a URL.", fix="Use --model NAME=PATH.")
        other = seen.setdefault(model.name, model)
        if other is not model:
            raise OptionError(f'Two models are called "{model.name}": {other.path} and {model.path}.')
    return found


def _named(text: str) -> ModelFile:
    name, equals, path = text.partition("=")
    if not equals or not name or not path:
        raise OptionError(
            f'--model "{text}" is not of the form NAME=PATH.', fix="For example --model detector=detector.onnx."
        )
    if Path(path).is_dir():
        absolute_model_path(path, prepared=True)  # raises an error for a folder without a prepared model
    elif not Path(path).is_file():
        raise NoSuchFile(f"There is no model file {path}.", **why_missing(path))
    return ModelFile(name, Path(path))


def _in_folder(folder: Path) -> Sequence[ModelFile]:
    """Return the models in a folder.

    These are files `NAME.onnx`, prepared folders, and the highest version of Triton's `NAME/VERSION/model.onnx`.
    """
    if not folder.is_dir():
        raise NoSuchFile(f"There is no folder {folder}.", **why_missing(folder))
    found: list[ModelFile] = []
    for entry in sorted(folder.iterdir()):
        if entry.is_file() and entry.suffix.lower() == ".onnx":
            found.append(ModelFile(entry.stem, entry))
        elif (entry / PREPARED_MANIFEST).is_file():
            found.append(ModelFile(entry.name, entry))
        elif entry.is_dir():
            versions = [int(part.name) for part in entry.iterdir() if _is_version(part)]
            if versions:
                version = str(max(versions))
                found.append(ModelFile(entry.name, entry / version / "model.onnx", version))
    if not found:
        raise OptionError(
            f"There is no model in {folder}.",
            fix="Put NAME.onnx files, folders from `qnnbridge prepare`, or NAME/1/model.onnx (the layout "
            "of Triton) into the folder.",
        )
    return found


def _is_version(folder: Path) -> bool:
    return bool(_VERSION.fullmatch(folder.name)) and (folder / "model.onnx").is_file()


def read_names(option: str, texts: Iterable[str]) -> dict[str, Path]:
    """Parse the values NAME=FOLDER of `--llm`, `--embed` or `--speech`. Raise `OptionError` or `NoSuchFile`."""
    found: dict[str, Path] = {}
    for text in texts:
        name, equals, folder = text.partition("=")
        if not equals or not name or not folder or not name.isprintable():
            raise OptionError(
                f'{option} "{text}" is not of the form NAME=FOLDER.', fix=f"For example {option} phi=phi-qnn."
            )
        if name in found:
            raise OptionError(f'Two models of {option} are called "{name}": {found[name]} and {folder}.')
        if not Path(folder).is_dir():
            raise NoSuchFile(f"There is no folder {folder}.", **why_missing(folder))
        found[name] = Path(folder)
    return found


def refuse_same_names(found: Mapping[str, Mapping[str, Path]]) -> None:
    """Raise `OptionError` if two options use the same name. found: results of `read_names` by option."""
    for (one, names), (other, others) in itertools.combinations(found.items(), 2):
        both = names.keys() & others.keys()
        if both:
            raise OptionError(f'{one} and {other} both have a model called "{min(both)}".')


def read_buckets(texts: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, list[int]]]:
    """Parse values NAME:DIM=16,32 of `--bucket`. Return the sizes by name of the model. Raise `OptionError`."""
    # Try longer names first, because one name may begin with another.
    longest_first = sorted(names, key=len, reverse=True)
    by_name: dict[str, list[str]] = {}
    for text in texts:
        # Do not split at a colon: names may contain colons, and so may dimensions that are specified by input and
        # axis.
        name = next((name for name in longest_first if text.startswith(f"{name}:")), None)
        if name is None:
            raise OptionError(
                f'--bucket "{text}" does not begin with the name of a model that is served here.',
                fix="Give the model, a free dimension and its sizes: --bucket text:seq=16,32,64.",
            )
        by_name.setdefault(name, []).append(text[len(name) + 1 :])
    return {name: arguments.read_bucket_sizes(given) for name, given in by_name.items()}


def _limit(seconds: float) -> float | None:
    """Return the seconds, or ``None`` for 0, which means no limit."""
    return seconds or None


@dataclasses.dataclass(frozen=True, slots=True)
class MediaSources:
    """Folders and servers that pictures may come from. origins: scheme, name and port of servers, in lower case."""

    folders: tuple[Path, ...] = ()
    origins: tuple[str, ...] = ()


_MEDIA_ORIGIN: Final = re.compile(r"https?://[^/\s@?#\\]+")


def read_media_sources(texts: Sequence[str]) -> MediaSources:
    """Parse the values of `--media-from`. Raise `OptionError` or `NoSuchFile`."""
    folders, origins = [], []
    for text in texts:
        if "://" in text:
            if not _MEDIA_ORIGIN.fullmatch(text):
                raise OptionError(
                    f'--media-from "{text}" is not the address of a server.',
                    fix="Give scheme and name, and a port if needed: https://pictures.example.org.",
                )
            origins.append(text.lower())
        elif Path(text).is_dir():
            folders.append(Path(text).resolve())
        else:
            raise NoSuchFile(
                f"There is no folder {text}.", **why_missing(text, "Give a folder, or the address of a server.")
            )
    return MediaSources(tuple(folders), tuple(origins))


@dataclasses.dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits of the pictures and recordings in a request for --llm."""

    most_pixels: Annotated[
        int, typer.Option("--max-pixels", min=1, metavar="N", help="Pixels of all pictures of a request.")
    ] = 25_000_000
    most_seconds: Annotated[
        float,
        typer.Option("--max-audio", min=0, metavar="S", help="Seconds of all recordings of a request."),
    ] = 300
    most_parts: Annotated[
        int, typer.Option("--max-media", min=0, metavar="N", help="Pictures and recordings of a request.")
    ] = 16
    sources: Annotated[
        MediaSources,
        typer.Option(
            "--media-from",
            metavar="WHERE",
            help="A folder or server (https://NAME) whose pictures requests may refer to. Repeatable.",
        ),
        Read(read_media_sources, list[str], ()),
    ] = dataclasses.field(default_factory=MediaSources)


@dataclasses.dataclass(frozen=True, slots=True)
class ServeSessionOptions:
    """Options with which all models are loaded."""

    provider: ProviderName = "qnn"
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    fallback: Fallback = "error"
    dimensions: NamedDims = dataclasses.field(default_factory=Dimensions)

    @property
    def providers(self) -> tuple[str, ...]:
        return (f"{self.provider.upper()}ExecutionProvider",)


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of the service; ``None`` means no limit. timeout_s: seconds from the last byte of a request."""

    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", min=0, metavar="S", help="Time limit of a request in seconds; 0 for no limit."),
        Read(_limit, float),
    ] = 60
    answer_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--answer-timeout",
            min=0,
            metavar="S",
            help="Time limit of an answer of --llm or --speech in seconds; 0 for no limit.",
        ),
        Read(_limit, float),
    ] = 600
    most_bytes: Annotated[
        int,
        typer.Option("--max-request", metavar="SIZE", help="Largest request: 500M, 2G."),
        Read(functools.partial(arguments.read_size, "--max-request"), str, "256M"),
    ] = 256 << 20
    threads: Annotated[int, typer.Option(min=1, max=64, metavar="N", help="Requests in the host at once.")] = 8
    queue: Annotated[int, typer.Option(min=0, metavar="N", help="Requests that wait; more are refused.")] = 256
    kept: Annotated[
        int,
        typer.Option(
            "--keep-generators",
            min=0,
            max=64,
            metavar="N",
            help="Maximum number of generators of --llm. An idle generator keeps the KV cache of a conversation.",
        ),
    ] = 4
    kept_bytes: Annotated[
        int,
        typer.Option("--keep-bytes", metavar="SIZE", help="Memory limit of all generators' KV caches: 500M, 8G."),
        Read(functools.partial(arguments.read_size, "--keep-bytes"), str, "4G"),
    ] = 4 << 30
    kept_responses: Annotated[
        int,
        typer.Option(
            "--keep-responses",
            min=0,
            max=100_000,
            metavar="N",
            help="Responses kept in memory for previous_response_id of /v1/responses.",
        ),
    ] = 1000

    @property
    def in_all(self) -> int:
        """Maximum number of requests in the server, both running and waiting."""
        return self.threads + self.queue


@dataclasses.dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `serve`. token, files, embedder_buckets: computed from other options by `with_files`."""

    address: Annotated[
        Address,
        typer.Option(
            "--http", metavar="ADDR", help="HOST:PORT to listen on. A non-loopback address needs --token-file."
        ),
        Read(read_address, str, DEFAULT_ADDRESS),
    ]
    models: Annotated[
        tuple[str, ...], typer.Option("--model", metavar="NAME=PATH", help="A model and its name. Repeatable.")
    ] = ()
    folders: Annotated[
        tuple[Path, ...],
        typer.Option("--models", metavar="FOLDER", help="Serve each NAME.onnx and NAME/VERSION/model.onnx in it."),
    ] = ()
    language_models: Annotated[
        Mapping[str, Path],
        typer.Option("--llm", metavar="NAME=FOLDER", help="A language model and its name. Repeatable."),
        Read(functools.partial(read_names, "--llm")),
    ] = dataclasses.field(default_factory=dict)
    allow_native: AllowNative = ()
    embedders: Annotated[
        Mapping[str, Path],
        typer.Option("--embed", metavar="NAME=FOLDER", help="A model for embeddings and its name. Repeatable."),
        Read(functools.partial(read_names, "--embed")),
    ] = dataclasses.field(default_factory=dict)
    recognizers: Annotated[
        Mapping[str, Path],
        typer.Option("--speech", metavar="NAME=FOLDER", help="A Whisper model and its name. Repeatable."),
        Read(functools.partial(read_names, "--speech")),
    ] = dataclasses.field(default_factory=dict)
    buckets: Annotated[
        tuple[str, ...],
        typer.Option(
            "--bucket", metavar="NAME:DIM=16,32", help="Sizes of a free dimension of a model. May be repeated."
        ),
    ] = ()
    where: Annotated[
        Where, typer.Option("--host", help="The daemon that applications share, or a separate host.")
    ] = "daemon"
    sessions: ServeSessionOptions = dataclasses.field(default_factory=ServeSessionOptions)
    host_python: HostPython = None
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Clients must send the token in this file, whose mode must be 0600."),
    ] = None
    limits: ServiceLimits = dataclasses.field(default_factory=ServiceLimits)
    media: MediaLimits = dataclasses.field(default_factory=MediaLimits)
    drain_s: Annotated[
        float,
        typer.Option("--drain", min=0, metavar="S", help="Seconds to let running requests finish at shutdown."),
    ] = 30
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Serve the other models if one cannot be loaded at the start.")
    ] = False
    control: Annotated[
        bool, typer.Option("--model-control/--no-model-control", help="Whether clients may load and unload models.")
    ] = True
    origins: Annotated[
        tuple[str, ...],
        typer.Option(
            "--allow-origin",
            metavar="ORIGIN",
            help="Origin of a web page that may use the server: http://localhost:3000.",
        ),
        Read(read_origins),
    ] = ()
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Whether GET / returns a page to view and try models.")
    ] = True
    access_log: Annotated[bool, typer.Option("--access-log", help="One line on stderr for each request.")] = False
    token: bytes | None = dataclasses.field(default=None, metadata=APART)
    files: Sequence[ModelFile] = dataclasses.field(default=(), metadata=APART)
    embedder_buckets: Mapping[str, Mapping[str, Sequence[int]]] = dataclasses.field(
        default_factory=dict, metadata=APART
    )

    def with_files(self) -> ServeOptions:
        """Return the options with the token, the model files and their sizes.

        Raise `OptionError` or `NoSuchFile`.
        """
        by_folder = {"--llm": self.language_models, "--embed": self.embedders, "--speech": self.recognizers}
        files = find_models(self.models, self.folders, optional=any(by_folder.values()))
        refuse_same_names(by_folder)
        sizes = read_buckets(self.buckets, [*(file.name for file in files), *self.embedders])
        if not files and not self.embedders and not self.recognizers:
            of_files = {
                "--provider": self.sessions.provider != "qnn",
                "--provider-option": bool(self.sessions.provider_options),
            }
            arguments.refuse_together("--llm without --model", of_files)
        return dataclasses.replace(
            self,
            token=None if self.token_file is None else read_token(self.token_file),
            files=[dataclasses.replace(file, buckets=sizes.get(file.name, {})) for file in files],
            embedder_buckets={name: sizes[name] for name in self.embedders if name in sizes},
        )
