"""Is it all there, and as it was? An archive with the hash of each of its files, and the comparison with them."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.sealed import Difference, Verified

SUMS = "SHA256SUMS"
BUNDLE = "bundle.zip"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_EXPECTED = f"expected a bundle.zip of `gradcheck bundle`, or a folder with {SUMS}"
_LARGEST_SUMS = 1 << 20
# A few bytes can claim to be terabytes: what is longer than this was not written by gradcheck.
LARGEST = 1 << 30
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
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)

Open = Callable[[], IO[bytes]]


def sums(files: Mapping[str, bytes]) -> str:
    """The hashes, as sha256sum writes and checks them."""
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))


def packed(files: Mapping[str, bytes]) -> bytes:
    """A zip of the files and their hashes; the same files give the same bytes."""
    whole = {**files, SUMS: sums(files).encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(whole):
            archive.writestr(_member(name), whole[name])
    return buffer.getvalue()


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)  # of the year 1980
    member.external_attr = (stat.S_IFREG | 0o644) << 16
    member.compress_type = zipfile.ZIP_DEFLATED
    return member


def verify(path: Path) -> Verified:
    """Compare every hash, unpacking nothing; UsageError where it is no bundle."""
    if path.is_dir():
        found = dict(_in_folder(path))
        if SUMS not in found and (path / BUNDLE).is_file():
            raise UsageError(f"{path} holds no {SUMS}: {_EXPECTED}; try {path / BUNDLE}")
        return _compared(path, found)
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is neither a file nor a folder: {_EXPECTED}; it was not read")
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            verified = _compared(path, *_in_archive(archive))
            if verified.differences or _as_packed(archive, raw):
                return verified
    except FileNotFoundError:
        raise UsageError(f"{path} is not there: {_EXPECTED}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a zip ({error}): {_EXPECTED}; fetch it again") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; {_EXPECTED}") from None
    why = "expected its files and nothing else, found bytes around or between them that belong to none"
    return Verified(files=verified.files, differences=[Difference(name=path.name, kind="altered", why=why)])


def _as_packed(archive: zipfile.ZipFile, raw: IO[bytes]) -> bool:
    """Whether the zip itself is as `packed` lays it out: one member after the other, then their directory, no more.

    The members are not packed again: another build of zlib may find other bytes for the same content.
    """
    directory = 0
    for member in archive.infolist():
        plain = _member(member.filename)
        plain.flag_bits = 0 if member.filename.isascii() else 0x800
        if any(getattr(member, field) != getattr(plain, field) for field in _FIELDS):
            return False
        plain.CRC, plain.compress_size, plain.file_size = member.CRC, member.compress_size, member.file_size
        header = plain.FileHeader()
        if member.header_offset != raw.tell() or raw.read(len(header)) != header:
            return False
        if not _one_stream(raw, member.compress_size):
            return False
        directory += 16 + len(header)  # an entry of the directory is 46 bytes and the name, a header 30 and the name
    start, members = raw.tell(), len(archive.infolist())
    if start + directory >= 1 << 32 or members >= 1 << 16:  # then it has fields that gradcheck writes for no bundle
        return False
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, members, members, directory, start, 0)
    raw.seek(directory, os.SEEK_CUR)
    return archive.start_dir == start and raw.read(len(end) + 1) == end


def _one_stream(raw: IO[bytes], size: int) -> bool:
    """Whether the next bytes are one deflated stream that ends where they end."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    while size and (block := raw.read(min(size, _STEP))):
        size -= len(block)
        while block:
            inflater.decompress(block, _STEP)
            block = inflater.unconsumed_tail
            if inflater.unused_data:
                return False
    return inflater.eof and not size


def _in_archive(archive: zipfile.ZipFile) -> tuple[dict[str, Open | str], list[Difference]]:
    """Each member by name: how to read it, or why it is not read; and the second ones of a name."""
    members: dict[str, Open | str] = {}
    twice = []
    for member in archive.infolist():
        if member.filename in members:
            twice.append(Difference(name=member.filename, kind="added", why="expected each name once, found it twice"))
        else:
            members[member.filename] = _unsafe(member) or _opener(archive, member)
    return members, twice


def _opener(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Open:
    return lambda: archive.open(member)


def _unsafe(member: zipfile.ZipInfo) -> str:
    if member.filename.endswith("/") or not member.filename:
        return _outside(member.filename) or "expected files alone, found a folder; nothing was read there"
    if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        return "expected a file that is stored or deflated, found another packing; it was not read"
    mode = member.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
        return "expected a plain file, found a link or a device; it was not read"
    if member.file_size > LARGEST:
        return f"expected at most {LARGEST >> 20} MiB, found {member.file_size >> 20} MiB; it was not read"
    return _outside(member.filename)


def _outside(name: str) -> str:
    """Why a name is none of a file in the archive; "" where it is."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or re.match(r"[A-Za-z]:", name):
        return "expected a name inside the archive, found one that leads out of it; nothing was read there"
    return ""


def _in_folder(root: Path) -> Iterator[tuple[str, Open | str]]:
    for folder, folders, files in os.walk(root, onerror=_unreadable):
        for name in files + [one for one in folders if Path(folder, one).is_symlink()]:
            file = Path(folder, name)
            plain = file.is_file() and not file.is_symlink()
            how: Open | str = (
                _file(file) if plain else "expected a plain file, found a link or a device; it was not read"
            )
            yield file.relative_to(root).as_posix(), how


def _unreadable(error: OSError) -> None:
    raise UsageError(f"cannot read {error.filename}: {error.strerror}; {_EXPECTED}")


def _file(path: Path) -> Open:
    return lambda: path.open("rb")


def _compared(path: Path, found: dict[str, Open | str], twice: list[Difference] | None = None) -> Verified:
    wanted = _wanted(path, found.pop(SUMS, None))
    differences = [*(twice or [])]
    for name, expected in wanted.items():
        how = found.pop(name, None)
        if how is None:
            why = _outside(name) or f"expected the file that {SUMS} names, found none"
            differences.append(Difference(name=name, kind="missing", why=why))
        elif isinstance(how, str):
            differences.append(Difference(name=name, kind="altered", why=how))
        elif why := _differs(how, expected):
            differences.append(Difference(name=name, kind="altered", why=why))
    for name, how in found.items():
        why = how if isinstance(how, str) else f"expected only what {SUMS} names"
        differences.append(Difference(name=name, kind="added", why=why))
    return Verified(files=len(wanted), differences=sorted(differences, key=lambda one: one.name))


def _wanted(path: Path, how: Open | str | None) -> dict[str, str]:
    """Name -> hash, as the archive says of itself."""
    if how is None or isinstance(how, str):
        raise UsageError(f"{path} holds no {SUMS}{f' that can be read ({how})' if how else ''}: {_EXPECTED}")
    try:
        with how() as file:
            text = file.read(_LARGEST_SUMS).decode()
    except _BROKEN as error:
        raise UsageError(
            f"{path}: {SUMS} was altered, it cannot be read ({error}): {_EXPECTED}; fetch it again"
        ) from None
    wanted = {}
    for number, line in enumerate(text.splitlines(), 1):
        parsed = _LINE.fullmatch(line)
        if parsed is None:
            raise UsageError(
                f"{path}: {SUMS}, line {number}: expected a hash of 64 digits, two blanks and a name, as sha256sum "
                f"writes it; found {line[:80]!r}; fetch the bundle again"
            )
        if parsed[2] in wanted:
            raise UsageError(
                f"{path}: {SUMS}, line {number}: expected each name once, found {parsed[2][:80]!r} again; "
                f"fetch the bundle again"
            )
        wanted[parsed[2]] = parsed[1]
    if not wanted:
        raise UsageError(f"{path}: {SUMS} names no file: {_EXPECTED}; fetch it again")
    return wanted


def _differs(how: Open, expected: str) -> str:
    """Why a file is not the one that was hashed; "" where it is."""
    digest, read = hashlib.sha256(), 0
    try:
        with how() as file:
            while block := file.read(_STEP):
                digest.update(block)
                read += len(block)
                if read > LARGEST:
                    return f"expected at most {LARGEST >> 20} MiB, found more"
    except _BROKEN as error:
        return f"expected sha256 {expected[:12]}..., found what cannot be read: {error}"
    found = digest.hexdigest()
    return "" if found == expected else f"expected sha256 {expected[:12]}..., found {found[:12]}..."
