"""Replace personal data in a text that is sent to others: names of people and computers, and secrets.

Texts come from logs, tracebacks and JSON documents, so one path has many spellings: either slash, slashes doubled
by JSON once or twice, URL escapes, Windows' short names (``ANNABE~1``), network paths. Profile folders are found by
their position (``Users\\NAME``), which also replaces the accounts of other people. Names of this account and this
computer are found everywhere. All patterns take linear time, because a log may contain a line of any length. Needs
only the standard library.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import platform
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

HOME: Final = "~"
USER: Final = "USER"
COMPUTER: Final = "COMPUTER"
SERVER: Final = "SERVER"
COMPANY: Final = "COMPANY"
SECRET: Final = "SECRET"  # noqa: S105 - the placeholder
ADDRESS: Final = "ADDRESS"

# Shorter names, and names that are common words, are replaced only in profile folders. Replacing them everywhere
# would make the text unreadable.
_LEAST_NAME: Final = 3
_USUAL_WORDS: Final = frozenset(
    (
        *("root", "admin", "administrator", "user", "users", "public", "default", "guest", "runner", "test", "dev"),
        *("python", "windows", "linux", "debian", "ubuntu", "localhost", "workgroup", "desktop", "laptop"),
        *("computer", "server", "host", "client", "daemon", "bridge", "model", "onnx", "qnn", "htp", "npu", "cpu"),
    )
)
_LEAST_SECRET: Final = 6
_SECRET_VARIABLE: Final = re.compile(r"TOKEN|SECRET|PASSW|PWD$|API_?KEY|ACCESS_?KEY|CREDENTIAL", re.IGNORECASE)

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# JSON in JSON in JSON has eight backslashes for one.
_SEPARATOR: Final = r"(?:[\\/]|%5c|%2f){1,8}"
# A letter before a name can be the end of an escape sequence: `\nann` in JSON, `%20ann` in a URL.
_BEGIN: Final = r"(?:(?<![^\W_])|(?<=\\[nrtbf])|(?<=%[0-9a-f]{2})|(?<=\\u[0-9a-f]{4}))"
_END: Final = r"(?![^\W_])"
_LETTER: Final = r"(?:(?!%5c|%2f)[^\\/\"'<>|:*?\s,;()\[\]{}])|\\u[0-9a-f]{4}"
# A name has several words only if a separator follows: in "/home/ann is full" it ends at the space.
_FOLDER: Final = rf"(?:{_LETTER})+(?:[ ](?:{_LETTER})+){{1,3}}(?={_SEPARATOR})|(?:{_LETTER})+"
_PROFILE: Final = re.compile(
    rf"(?P<before>(?:{_SEPARATOR})(?:users|home|documents(?: |%20)and(?: |%20)settings|docume~\d)(?:{_SEPARATOR}))"
    rf"(?P<name>{_FOLDER})",
    re.IGNORECASE,
)
# Profile names that identify nobody: those that Windows creates, and the placeholder for user names.
_NOBODY: Final = frozenset({"public", "default", "all users", "all%20users", "user"})
# Match a network path, but not a doubled backslash after a drive or folder, which JSON escaping creates.
_NETWORK: Final = re.compile(
    r"(?<![\w:\\/.~%)])(?P<before>\\{2,8}(?:\?\\{1,4}UNC\\{1,4})?|file://(?=[^/])|//)"
    r"(?P<server>[A-Za-z0-9][\w.$-]*)(?P<slash>\\{1,4}|/)(?P<share>[\w.$-]+)",
    re.IGNORECASE,
)
_ACCOUNT_ID: Final = re.compile(r"S-1-5-21(?:-\d+){3,4}")
_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
# Name of a OneDrive folder, which contains the employer's name.
_COMPANY: Final = re.compile(
    r"(?P<before>OneDrive(?: |%20)-(?: |%20))(?!COMPANY\b)[^\\/\"'<>|:*?\r\n]+?(?=[\\/\"'\r\n]|%5c|%2f|$)",
    re.IGNORECASE,
)

# Names of variables with secrets. A value of digits alone is a count: max_tokens=512.
_OF_TOKENS: Final = r"(?:token|api[_-]?key|credential|authorization)s?"
_OF_PASSWORDS: Final = r"(?:passw(?:or)?d|passphrase|secret|(?:access|private)[_-]?key)s?"
_NOTHING: Final = r"(?:none|null|true|false|unknown)\b"
_OPENING: Final = r"[\[{(]"
_IS: Final = r"(?:\\*[\"'])?\s*(?:[:=]|(?<=--token)\s|(?<=--password)\s|(?<=--api-key)\s)\s*"
# JSON in a JSON string has backslashes before its quotes.
_QUOTE: Final = r"(?P<quote>\\*[\"'])"
_QUOTED: Final = r"(?:(?!(?P=quote))(?:\\.|[^\\\r\n]))"
_WORD: Final = r"[^\s\"'\\,;&}\])]"
_SECRETS: Final = (
    # Access keys with a known prefix.
    re.compile(
        r"(?P<before>)(?<![A-Za-z0-9])(?:hf_|gh[pousr]_|github_pat_|glpat-|sk-|xox[a-z]-|A[KS]IA|AIza|ya29\.|pypi-Ag|nvapi-"
        r"|eyJ)[A-Za-z0-9_.-]{12,}",
        re.ASCII,
    ),
    re.compile(r"(?P<before>\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}", re.IGNORECASE),
    # User name and password in a URL; the password may contain "@".
    re.compile(r"(?P<before>[a-z][a-z0-9+.-]{0,30}://)[^\s/\"'\\]+(?=@)", re.IGNORECASE),
    # Signature of a signed URL, which works for everyone who has it.
    re.compile(r"(?P<before>[?&](?:[\w-]{0,30}signature|sig)=)[^\s\"'\\&]+", re.IGNORECASE),
    # Match quoted values such as `"password": "..."` before unquoted values such as `password=...`. The patterns
    # for tokens follow.
    re.compile(rf"(?P<before>{_OF_PASSWORDS}{_IS}{_QUOTE}){_QUOTED}+", re.IGNORECASE),
    re.compile(rf"(?P<before>{_OF_PASSWORDS}{_IS})(?!{_NOTHING}|{_OPENING}){_WORD}+", re.IGNORECASE),
    re.compile(
        rf"(?P<before>{_OF_TOKENS}{_IS}{_QUOTE})(?!(?:\d+(?:\.\d+)?|{_NOTHING})?(?P=quote)){_QUOTED}{{6,}}",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?P<before>{_OF_TOKENS}{_IS})(?!\d+(?:\.\d+)?\b|{_NOTHING}|(?:bearer|basic)\b|{_OPENING}){_WORD}{{6,}}",
        re.IGNORECASE,
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Names and secrets of the user and the computer.

    Args:
        homes: home folders.
        users: account names.
        computers: names of the computer and its domain.
        secrets: values that must never appear.
    """

    homes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    computers: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def not_searched(self) -> tuple[str, ...]:
        """Return the names that are replaced only in profile folders and network paths."""
        return tuple(name for name in (*self.users, *self.computers) if not _searchable(name))


def this_identity(environ: Mapping[str, str] | None = None) -> Identity:
    """Return the identity of this process's user and computer. Never raises."""
    known = os.environ if environ is None else environ
    homes = _distinct([os.path.expanduser("~"), known.get("USERPROFILE", ""), known.get("HOME", "")])
    # Add the targets of links, which tracebacks contain.
    homes = _distinct([*homes, *map(os.path.realpath, homes)])
    users = [known.get(name, "") for name in ("USERNAME", "USER", "LOGNAME", "SUDO_USER")]
    users += [re.split(r"[\\/]", home.rstrip("\\/"))[-1] for home in homes]
    # In a container without users `getpass.getuser` raises KeyError or OSError, depending on the version of Python.
    with contextlib.suppress(Exception):
        users.append(getpass.getuser())
    node = platform.node()
    computers = [node, node.partition(".")[0]]
    computers += [known.get(name, "") for name in ("COMPUTERNAME", "HOSTNAME", "USERDOMAIN", "USERDNSDOMAIN")]
    secrets = [value for name, value in known.items() if _SECRET_VARIABLE.search(name)]
    return Identity(
        tuple(home for home in homes if len(home) > _LEAST_NAME),
        _distinct(users),
        _distinct(computers),
        tuple(value for value in _distinct(secrets) if len(value) >= _LEAST_SECRET and not os.path.exists(value)),
    )


def without_personal(text: str, identity: Identity) -> tuple[str, dict[str, int]]:
    """Return (text with placeholders, number of replacements for each placeholder)."""
    counts: dict[str, int] = {}

    def put(stand_in: str) -> str:
        counts[stand_in] = counts.get(stand_in, 0) + 1
        return stand_in

    def profile(match: re.Match[str]) -> str:
        kept = match["name"].lower() in _NOBODY
        return match[0] if kept else match["before"] + put(USER)

    # Remove colour sequences, whose last letter would be read as part of a name.
    text = _ANSI.sub("", text)
    for value in sorted(identity.secrets, key=len, reverse=True):
        text = re.sub("|".join(_spellings(value)), lambda _: put(SECRET), text)
    for pattern in _SECRETS:
        text = pattern.sub(lambda match: match["before"] + put(SECRET), text)
    for home in sorted(identity.homes, key=len, reverse=True):
        text = _of_folder(home).sub(lambda _: put(HOME), text)
    text = _PROFILE.sub(profile, text)
    text = _NETWORK.sub(lambda match: match["before"] + put(SERVER) + match["slash"] + "SHARE", text)
    text = _COMPANY.sub(lambda match: match["before"] + put(COMPANY), text)
    text = _ACCOUNT_ID.sub(lambda _: put(USER), text)
    text = _EMAIL.sub(lambda _: put(ADDRESS), text)
    for names, stand_in in ((identity.users, USER), (identity.computers, COMPUTER)):
        for name in sorted(filter(_searchable, names), key=len, reverse=True):
            spellings = "|".join((*_spellings(name), *_short_name(name)))
            pattern = re.compile(rf"{_BEGIN}(?:{spellings}){_END}", re.IGNORECASE)
            text, found = pattern.subn(stand_in, text)
            if found:
                counts[stand_in] = counts.get(stand_in, 0) + found
    return text, counts


def _searchable(name: str) -> bool:
    return len(name) >= _LEAST_NAME and name.lower() not in _USUAL_WORDS


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value))


def _spellings(text: str) -> tuple[str, ...]:
    """Return patterns for the string in both Unicode normal forms: plain, in JSON and in URLs."""
    found = []
    for form in _distinct([text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)]):
        in_json = form.encode("unicode_escape").decode("ascii").replace("\\x", "\\u00")
        # JSON inside of a JSON string doubles the backslashes.
        found += [re.escape(form), re.escape(in_json).replace(r"\\", r"\\{1,8}"), re.escape(quote(form, safe=""))]
    return _distinct(found)


def _short_name(name: str) -> tuple[str, ...]:
    """Return the pattern of Windows' short name, which has the first six characters without dots and spaces."""
    kept = re.sub(r"[ .]", "", name)
    return (re.escape(kept[:6]) + r"~\d",) if kept != name or len(kept) > 8 else ()


def _of_folder(path: str) -> re.Pattern[str]:
    """Return a pattern that matches the folder's path with either path separator."""
    parts = [part for part in re.split(r"[\\/]+", path) if part]
    one = [f"(?:{'|'.join((*_spellings(part), *_short_name(part)))})" for part in parts]
    start = _SEPARATOR if path[:1] in "\\/" else ""
    # The home of `ann` must not match the beginning of the home of `anna`.
    return re.compile(rf"{start}{_SEPARATOR.join(one)}(?![\w.~-]*[\w~-])", re.IGNORECASE)
