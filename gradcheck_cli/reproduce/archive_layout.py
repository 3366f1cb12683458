"""Is a zip laid out as gradcheck lays it out? Then no byte of it belongs to nothing."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from typing import IO

_STEP = 1 << 20
# What a member says of itself in the directory, beside its name, its sizes and where it is.
_FIELDS = (
    "compress_type",
    "comment",
    "create_system",
    "create_version",
    "date_time",
    "external_attr",
    "extra",
    "extract_version",
    "flag_bits",
    "internal_attr",
    "reserved",
    "volume",
)


def plain_member(name: str) -> zipfile.ZipInfo:
    """What the directory of a zip says of a file that gradcheck packs."""
    member = zipfile.ZipInfo(name)  # of the year 1980
    member.external_attr = (stat.S_IFREG | 0o644) << 16
    member.compress_type = zipfile.ZIP_DEFLATED
    return member


def as_packed(archive: zipfile.ZipFile, raw: IO[bytes]) -> bool:
    """Whether the zip is as `archive.packed` lays it out: one member after the other, then their directory, no more.

    The members are not packed again: another build of zlib may find other bytes for the same content.
    """
    directory = 0
    for member in archive.infolist():
        plain = plain_member(member.filename)
        plain.flag_bits = 0 if member.filename.isascii() else 0x800
        if any(getattr(member, field) != getattr(plain, field) for field in _FIELDS):
            return False
        plain.CRC, plain.compress_size, plain.file_size = member.CRC, member.compress_size, member.file_size
        header = plain.FileHeader()
        if member.header_offset != raw.tell() or raw.read(len(header)) != header:
            return False
        if not _one_stream(raw, member.compress_size, member.file_size):
            return False
        directory += 16 + len(header)  # an entry of the directory is 46 bytes and the name, a header 30 and the name
    start, members = raw.tell(), len(archive.infolist())
    if start + directory >= 1 << 32 or members >= 1 << 16:  # then it has fields that gradcheck writes for no bundle
        return False
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, members, members, directory, start, 0)
    raw.seek(directory, os.SEEK_CUR)
    return archive.start_dir == start and raw.read(len(end) + 1) == end


def _one_stream(raw: IO[bytes], size: int, inflated: int) -> bool:
    """Whether the next bytes are one deflated stream that ends where they end, and holds no more than it says."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    while size and (block := raw.read(min(size, _STEP))):
        size -= len(block)
        while block:
            inflated -= len(inflater.decompress(block, _STEP))
            block = inflater.unconsumed_tail
            if inflater.unused_data or inflated < 0:
                return False
    return inflater.eof and not size
