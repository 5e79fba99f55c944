"""Remembers the hashes of files, so that a file that has not changed is not read again.

One small file for each path. A record is valid only if the file has the recorded stamp, and was unchanged for a
while before it (`FileStamp.settled`): a file written just before or during its hashing is hashed again
the next time. No failure of the memo raises: files are then hashed, as if it were empty.
Any thread, any process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Final

from qnnbridge_host.cache.files import Damaged, read_json, write_json
from qnnbridge_host.model.source import FileStamp, hash_file, take_stamp
from qnnbridge_os.files import make_folders
from qnnbridge_protocol.model_records import CacheSettings

SCHEMA: Final = 1
FOLDER: Final = "memo"


@dataclasses.dataclass(frozen=True, slots=True)
class Hashed:
    """A file that was hashed, now or before (`remembered`)."""

    sha256: str
    stamp: FileStamp
    remembered: bool = False


class HashMemo:
    """Files with hashes that were computed before. root: the cache's folder."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER

    def look(self, path: str | os.PathLike[str]) -> Hashed | None:
        """The file's hash, remembered or computed; ``None`` if there is no such file.

        Raises `OSError` if the file cannot be read.
        """
        text = os.path.abspath(os.fspath(path))
        before = take_stamp(text)
        if before is None:
            return None
        known = self._recall(text)
        if known is not None and known.stamp.proves(before):
            return dataclasses.replace(known, remembered=True)
        found = Hashed(hash_file(text), before)
        after = take_stamp(text)
        if after is None or not before.same(after):
            # The file is being written. Its user will notice; its hash must not be remembered.
            return dataclasses.replace(found, stamp=before._replace(taken_ns=0))
        if found.stamp.settled:
            self._keep(text, found)
        return found

    def _keep(self, path: str, found: Hashed) -> None:
        content = {
            "schema": SCHEMA,
            "path": path,
            "stamp": list(found.stamp.to_plain()),
            "sha256": found.sha256,
        }
        try:
            make_folders(self.folder)
            write_json(self._file_of(path), content)
        except OSError:
            pass  # hashed again the next time

    def forget_gone(self) -> int:
        """Remove records of missing files and unreadable records. Returns their number."""
        removed = 0
        for file in self._files():
            try:
                content = read_json(file)
                if content is not None and os.path.exists(content["path"]):
                    continue
                file.unlink()
                removed += 1
            except (Damaged, LookupError, TypeError):
                file.unlink(missing_ok=True)
                removed += 1
            except OSError:
                continue
        return removed

    def _files(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except OSError:
            return []

    def _recall(self, path: str) -> Hashed | None:
        try:
            content = read_json(self._file_of(path))
            if content is None or content["schema"] != SCHEMA or content["path"] != path:
                return None
            stamp = FileStamp.from_plain(content["stamp"])
            sha256 = content["sha256"]
        except (Damaged, OSError, LookupError, TypeError, ValueError):
            return None
        return Hashed(sha256, stamp) if isinstance(sha256, str) else None

    def _file_of(self, path: str) -> Path:
        # The file name as the system spells it: two spellings of one path are two records, which costs a hash.
        name = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self.folder / f"{name}.json"


def memo_of(settings: CacheSettings | None) -> HashMemo | None:
    """The memo for a session with these settings; ``None`` if the cache is switched off."""
    return HashMemo(Path(settings.folder)) if settings is not None and settings.in_use else None
