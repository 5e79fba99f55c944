"""Reduce a PE or ELF file to the parts that show its machine type: ``trim.py FILE OUT``.

A PE file keeps its headers, followed by the load configuration; the section table is changed to that position. An
ELF file keeps its first 64 bytes.
"""

import struct
import sys
from pathlib import Path

LOAD_CONFIG_BYTES = 0x140


def trim(data: bytes) -> bytes:
    if data[:4] == b"\x7fELF":
        return data[:64]
    (pe,) = struct.unpack_from("<I", data, 0x3C)
    sections, optional_size = struct.unpack_from("<H12xH", data, pe + 6)
    optional = pe + 24
    (headers,) = struct.unpack_from("<I", data, optional + 60)
    out = bytearray(data[:headers])
    if struct.unpack_from("<H", data, optional) == (0x20B,):
        (address,) = struct.unpack_from("<I", data, optional + 112 + 8 * 10)
        for index in range(sections):
            entry = optional + optional_size + 40 * index
            size, start, _, raw = struct.unpack_from("<IIII", data, entry + 8)
            if address and start <= address < start + size:
                struct.pack_into("<IIII", out, entry + 8, LOAD_CONFIG_BYTES, address, LOAD_CONFIG_BYTES, headers)
                offset = raw + address - start
                out += data[offset : offset + LOAD_CONFIG_BYTES]
    return bytes(out)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(trim(Path(sys.argv[1]).read_bytes()))
