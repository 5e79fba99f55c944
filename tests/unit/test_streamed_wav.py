"""WAV data with missing or wrong sizes in the header: `qnnbridge.speech._audio`."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from qnnbridge.speech._audio import AudioReader
from qnnbridge_protocol.errors import OptionError

# Before a test of this process loads QNN, see `test_the_error_for_an_incompatible_libffi_names_the_fix`.
with contextlib.suppress(ImportError):
    import soundfile  # noqa: F401

RATE = 16000
PCM = (np.sin(np.arange(4000) * 0.05) * 20000).astype("<i2")
UNKNOWN = 0xFFFFFFFF


def wav(
    riff: int | None = None,
    data: int | None = None,
    *,
    kind: int = 1,
    bits: int = 16,
    between: bytes = b"",
    extensible: bool = False,
    samples: bytes = PCM.tobytes(),
    behind: bytes = b"",
) -> bytes:
    """Return WAV data. riff, data: sizes in the header; the true ones by default."""
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else kind, 1, RATE, RATE * bits // 8, bits // 8, bits)
    if extensible:
        form += struct.pack("<HHIH", 22, bits, 4, kind) + bytes.fromhex("000000001000800000aa00389b71")
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + between
    body += b"data" + struct.pack("<I", len(samples) if data is None else data) + samples + behind
    return b"RIFF" + struct.pack("<I", len(body) if riff is None else riff) + body


CASES = {
    "plain": wav(),
    "a pipe": wav(UNKNOWN, UNKNOWN, between=b"LIST\x05\0\0\0INFO\0\0"),
    "never closed": wav(0, 0),
    "no size of the samples": wav(None, 0),
    "as short as its header": wav(36, 0),
    "signed": wav(0x7FFFFFFF, 0x7FFFFFFF),
    "cut off": wav(None, 4 * PCM.size),
    "too small a file": wav(100),
    "extensible": wav(UNKNOWN, UNKNOWN, extensible=True),
    "half a sample": wav(samples=PCM.tobytes() + b"\1"),
    "text behind": wav(behind=b"LIST\4\0\0\0INFO"),
    "floats": wav(kind=3, bits=32, samples=(PCM / 32768).astype("<f4").tobytes()),
    "floats of a pipe": wav(0, 0, kind=3, bits=32, samples=(PCM / 32768).astype("<f4").tobytes()),
    "three bytes": wav(bits=24, samples=b"".join(struct.pack("<i", int(one) << 8)[:3] for one in PCM)),
}


@pytest.mark.parametrize("name", CASES)
def test_all_samples_are_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(CASES[name])
    for audio in (io.BytesIO(CASES[name]), str(path)):
        reader = AudioReader(audio)
        assert np.array_equal(reader.window(RATE * 60), (PCM / 32768).astype(np.float32))
        reader.close()


def test_damaged_audio_is_an_error_of_the_caller() -> None:
    """No other exception may occur: an exception of a decoder would be an internal error."""
    rng = random.Random(7)
    refused = 0
    for data in [*CASES.values()] * 8:
        damaged = bytearray(data[:3000])
        for _ in range(rng.choice([1, 3, 10])):
            damaged[rng.randrange(60)] = rng.choice([0, 255, rng.randrange(256)])
        del damaged[rng.randrange(12, len(damaged)) :]
        try:
            reader = AudioReader(io.BytesIO(bytes(damaged)))
            while reader.window(RATE).size:
                reader.advance(RATE)
            reader.close()
        except OptionError:
            refused += 1
    assert 20 < refused < 8 * len(CASES)


FOREIGN = """
import ctypes, io, pathlib, sys
import onnxruntime_qnn
from qnnbridge.speech._audio import AudioReader
ctypes.CDLL(str(pathlib.Path(onnxruntime_qnn.__file__).with_name("libQnnHtp.so")), mode=ctypes.RTLD_GLOBAL)
try:
    AudioReader(io.BytesIO(b"fLaC" + bytes(100)))
except Exception as error:
    sys.exit(str(error))
"""


@pytest.mark.process
@pytest.mark.simulator
def test_the_error_for_an_incompatible_libffi_names_the_fix() -> None:
    pytest.importorskip("onnxruntime_qnn")
    ran = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, timeout=60)
    assert "soundfile cannot read from an open file in this process" in ran.stderr
    assert "Import soundfile before QNN is loaded" in ran.stderr
