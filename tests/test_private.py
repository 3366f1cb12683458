"""Is nothing private left, and everything else?"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcheck_cli.records.case import Case
from gradcheck_cli.reproduce.private import Names, cleared, cleared_json, names_in, strings, without_marks

NOBODY = Names()
MINE = Names(frozenset({"mallory"}), frozenset({"gpu-node-17"}), frozenset({"/srv/people/mallory"}))
# Written in two parts: a scanner of repositories would take them for real ones.
TOKENS = {
    "GitHub": "gh" + "p_" + "a1B2" * 9,
    "GitHub, fine-grained": "github" + "_pat_" + "11AB" * 10,
    "Hugging Face": "hf" + "_" + "aBcD" * 8,
    "AWS": "AKI" + "A" + "IOSFODNN7EXAMPLE",
    "NGC": "bDRn" * 21,
    "NVIDIA API": "nv" + "api-" + "x9_Z" * 12,
    "JSON web token": "ey" + "JhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "c2lnbmF0dXJl",
}
ADDRESSES = (
    "10.12.7.3",
    "192.168.0.14",
    "8.8.8.8",
    "fe80::1ff:fe23:4567:890a",
    "2001:db8::7",
    "02:42:ac:11:00:02",
    "::1",
)
FRAMES = ("connect to {} failed", "[{}]", "at {}, rank 3", "peer <{}>", "tcp://{}", "eth0:{}<0>", "({})", "{}")


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("frame", ("{}", "login with {}.", "https://x.org/?t={}&b=1", "key='{}'"))
def test_a_token_goes(token: str, frame: str) -> None:
    text = cleared(frame.format(token), NOBODY)
    assert token not in text
    assert "<token>" in text


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("frame", FRAMES)
def test_an_address_goes(address: str, frame: str) -> None:
    if frame in ("tcp://{}", "eth0:{}<0>") and ":" in address:
        frame = frame.replace(":{}", ":[{}]").replace("//{}", "//[{}]")
    assert cleared(frame.format(address), NOBODY) == frame.format("<address>")


KEPT = (
    "cublaslt 13.5.1 · driver 580.159.04 · cudnn 9.14.0",
    "cudnn 9.14.0.64, cuBLAS 13.1.0.3",
    "nvidia-cudnn-cu13==9.14.0.64",
    "nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl",
    "libcublasLt.so.13.5.1.27",
    "version 1.2.3.4",
    "torch 2.13.0a0+8145d630e8.nv26.06",
    "at::native::c10::add and std::abs, c10::Error",
    "it took 12:34:56 at 2026-11-30T10:03:42+00:00",
    "te:api=module:single_grouped_weight=1:m_splits=64,0,128",
    "wgrad @ x, tokens_per_expert=32, a token missing",
    "NVTE_GROUPED_LINEAR_SINGLE_PARAM=1 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=0,1",
    'File "torch/nn/functional.py", line 12, in linear',
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1 and /opt/venv/lib/python3.12",
    "https://github.com/NVIDIA/TransformerEngine/issues/3234",
    "6866 of 6866, 1/2, n/m: n of the row's m cases",
    "TransformerEngine@v2.17.1",
)


@pytest.mark.parametrize("text", KEPT)
def test_what_is_of_use_stays(text: str) -> None:
    assert cleared(text, MINE) == text


HIDDEN = {
    "a home": ("/home/alice/te/run.py", "<home>/te/run.py"),
    "another home": ("/Users/alice", "<home>"),
    "a home of root": ("cd /root; ls", "cd <home>; ls"),
    "a home of Windows": (r"C:\Users\alice\te", r"<home>\te"),
    "one's own home elsewhere": ("/srv/people/mallory/te.log", "<home>/te.log"),
    "a folder": ("--output=/scratch/alice/secret/run", "--output=<folder>/run"),
    "a login": ("ssh alice@dgx-04.nvidia.com", "ssh <user>@<host>"),
    "a password in an address": ("https://bob:hunter2@x.org/simple", "https://<user>:<token>@x.org/simple"),
    "a host of a network within": ("reached node3.cluster.local.", "reached <host>."),
    "a host of AWS": ("on ip-10-1-2-3 now", "on <host> now"),
    "a host of torch's rendezvous": ("[node17]:29500", "[<host>]:29500"),
    "an address with a port": ("10.0.0.1:29500", "<address>:29500"),
    "one's own name": ("Mallory's gpu-node-17: user mallory_2", "<user>'s <host>: user <user>_2"),
    "a variable": ("WANDB_MODE=offline RANK=3", "WANDB_MODE=<variable> RANK=<variable>"),
    "a variable in quotes": ("export DB='a b' x", "export DB='a b' x"),
    "a longer variable in quotes": ("export DB_URL='a b' x", "export DB_URL=<variable> x"),
    "a dump of variables": ("{'MY_VAR': 'v', 'NVTE_X': '1'}", "{'MY_VAR': '<variable>', 'NVTE_X': '1'}"),
    "a secret by its name": ("password: hunter2, db_secret=x", "password: <token>, db_secret=<token>"),
    "a secret among what may be told": ("NVTE_API_KEY=abc", "NVTE_API_KEY=<token>"),
    "a header": ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer <token>"),
    "a key": ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nxx\n-----END RSA PRIVATE KEY-----!", "<token>!"),
}


@pytest.mark.parametrize(("text", "left"), HIDDEN.values(), ids=HIDDEN)
def test_what_is_nobodys_business_reads_as_what_it_was(text: str, left: str) -> None:
    assert cleared(text, MINE) == left


def test_a_name_that_is_given_away_once_goes_everywhere() -> None:
    names = names_in(["/home/alice/x", "bob@dgx-04.example.com"], NOBODY)
    assert cleared("alice and bob on dgx-04", names) == "<user> and <user> on <host>"


def test_a_name_behind_an_escaped_newline_is_the_name() -> None:
    decoded = msgspec.json.decode(b'{"why": ["\\nalice@dgx"]}')
    assert "alice" in names_in(strings(decoded), NOBODY).users


def test_root_is_nobodys_name_and_a_short_name_is_no_reason_to_spoil_words() -> None:
    names = names_in(["/home/x/run", "root@localhost"], NOBODY)
    assert cleared("x = root of localhost, /home/x/run", names) == "x = root of localhost, <home>/run"


def test_a_script_keeps_its_words() -> None:
    assert without_marks("torch = 1  # /home/torch", Names(users=frozenset({"torch"}))) == "torch = 1  # <home>"


def test_a_record_can_be_read_back_whatever_its_users_name() -> None:
    names = Names(users=frozenset({"verdict", "passed", "torch", "wgrad"}))
    line = {"event": "verdict", "outcome": "PASSED", "roles": {"wgrad": "PASSED"}, "axes": {"provider": "torch"}}
    assert cleared_json({**line, "why": "torch"}, names) == {**line, "why": "<user>"}


def test_variables_that_may_not_be_told_are_left_out_by_name_as_well() -> None:
    told = {
        "variables": {"NVTE_A": "1", "HOSTNAME": "x", "CUBLAS_TOKEN": "y"},
        "options": {"--known": "/home/al/k.toml"},
    }
    assert cleared_json(told, NOBODY) == {"variables": {"NVTE_A": "1"}, "options": {"--known": "<home>/k.toml"}}


def test_versions_stay_whatever_their_form() -> None:
    assert cleared_json({"versions": {"x": "1.2.3.4"}}, NOBODY) == {"versions": {"x": "1.2.3.4"}}
    assert cleared_json({"versions": {"x": "on 1.2.3.4"}}, NOBODY) == {"versions": {"x": "on <address>"}}


@given(st.text(), st.sampled_from(list(HIDDEN.values())), st.text())
def test_clearing_twice_is_clearing_once(before: str, hidden: tuple[str, str], after: str) -> None:
    once = cleared(f"{before} {hidden[0]} {after}", MINE)
    assert cleared(once, MINE) == once


@given(st.ip_addresses(v=4), st.sampled_from(FRAMES))
def test_no_address_of_four_numbers_is_left(address: object, frame: str) -> None:
    assert str(address) not in cleared(frame.format(address), NOBODY)


@given(st.lists(st.integers(0, 4096), min_size=1, max_size=32).filter(any), st.integers(0, 10**9))
def test_an_id_is_left_alone(sizes: list[int], seed: int) -> None:
    case = Case.of({"provider": "te", "api": "module", "m_splits": sizes, "seed": seed, "dtype": "fp32"})
    assert cleared(str(case), MINE) == str(case)
