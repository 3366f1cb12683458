"""Is it all there, and as it was? An archive with the hash of each of its files, and the comparison with them."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from gradcheck_cli import paths
from gradcheck_cli.errors import UsageError
from gradcheck_cli.records.excerpt import shortened
from gradcheck_cli.records.sealed import Difference, Verified
from gradcheck_cli.reproduce.archive_layout import as_packed, plain_member

SUMS = "SHA256SUMS"
BUNDLE = "bundle.zip"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_EXPECTED = f"expected a bundle.zip of `gradcheck bundle`, or a folder with {SUMS}"
_LARGEST_SUMS = 1 << 20
# A few bytes can claim to be terabytes: what is longer than this, in one file or in all, was not written by gradcheck.
LARGEST = 1 << 30
_STEP = 1 << 20
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
            archive.writestr(plain_member(name), whole[name])
    return buffer.getvalue()


def verify(path: Path) -> Verified:
    """Compare every hash, unpacking nothing; UsageError where it is no bundle."""
    if paths.is_dir(path):
        found = dict(_in_folder(path))
        if SUMS not in found and (path / BUNDLE).is_file():
            raise UsageError(f"{path} holds no {SUMS}: {_EXPECTED}; try {path / BUNDLE}")
        return _compared(path, found)
    if paths.exists(path) and not path.is_file():
        raise UsageError(f"{path} is neither a file nor a folder: {_EXPECTED}; it was not read")
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
            verified = _compared(path, *_in_archive(archive))
            if verified.differences or as_packed(archive, raw):
                return verified
    except FileNotFoundError:
        raise UsageError(f"{path} is not there: {_EXPECTED}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, ValueError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as a zip ({error}): {_EXPECTED}; fetch it again") from None
    except OSError as error:
        raise UsageError(f"cannot read {shortened(path)}: {error.strerror or error}; {_EXPECTED}") from None
    why = "expected its files and nothing else, found bytes around or between them that belong to none"
    return Verified(files=verified.files, differences=[Difference(name=path.name, kind="altered", why=why)])


def _in_archive(archive: zipfile.ZipFile) -> tuple[dict[str, Open | str], list[Difference]]:
    """Each member by name: how to read it, or why it is not read; and the second ones of a name."""
    members: dict[str, Open | str] = {}
    twice, total = [], 0
    for member in archive.infolist():
        total += member.file_size
        if member.filename in members:
            twice.append(Difference(name=member.filename, kind="added", why="expected each name once, found it twice"))
        else:
            members[member.filename] = _unsafe(member) or _too_much(total) or _opener(archive, member)
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


def _too_much(total: int) -> str:
    """Why a file is not read once those before it and it are so many bytes; "" where it is."""
    return f"expected at most {LARGEST >> 20} MiB in all files, found more; it was not read" if total > LARGEST else ""


def _outside(name: str) -> str:
    """Why a name is none of a file in the archive; "" where it is."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or re.match(r"[A-Za-z]:", name):
        return "expected a name inside the archive, found one that leads out of it; nothing was read there"
    return ""


def _in_folder(root: Path) -> Iterator[tuple[str, Open | str]]:
    total = 0
    for folder, folders, files in os.walk(root, onerror=_unreadable):
        for name in files + [one for one in folders if Path(folder, one).is_symlink()]:
            file = Path(folder, name)
            plain = file.is_file() and not file.is_symlink()
            total += file.stat().st_size if plain else 0
            how: Open | str = "expected a plain file, found a link or a device; it was not read"
            yield file.relative_to(root).as_posix(), (_too_much(total) or _file(file)) if plain else how


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
