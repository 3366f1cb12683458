"""Is nothing private left, and everything else?"""

from __future__ import annotations

import json
import re
from html import escape
from urllib.parse import quote, unquote

import msgspec
import pytest
from hypothesis import example, given, settings
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
    "TransformerEngine@v2.17.1 and TransformerEngine@main",
    "dgrad = dy@wgrad is not there; see x@module, x@w.t() and x@weight.mT",
    "sm_90, compute_90a, bf16 (4, 96), dtype=torch.bfloat16, TP=2 BM=128",
    "MISSING wgrad (untouched): expected main_grad = prefill + wgrad; found the prefill, bit for bit",
    "INEXACT wgrad[3]: token 7 missing, scaled by 0.5; FAULT: wgrad",
    "RuntimeError: CUDA error: device-side assert triggered; CUBLAS_STATUS_NOT_SUPPORTED: no algorithm",
    "nvidia-curand-cu13==10.4.0.35, libcurand.so.10.4.0.35, curand 10.4.0.35",
    "y = layer(x, m_splits=splits, weight=w, bias=None)",
    "Linear(in_features=64, out_features=96, bias=False)",
    "cublasLtMatmul(alpha=1.0, beta=1.0) at grouped_gemm.cu:340",
    "https://github.com/NVIDIA/TransformerEngine/blob/v2.17.1/transformer_engine/common/gemm/x.cu#L12",
    r"expected '\n' and \t, 100% of 5%, a && b, &c",
    "PYTORCH_ALLOC_CONF=expandable_segments:True and TORCH_LOGS=+dynamo",
    "an int64 tensor on the host int64, moved from host float32 to cuda:0; host memory",
    "w[i0:1024], x1:12345, tests/x2.py:12345, node add_12 of a graph, localhost:29500",
    "connected to rank 3, connect to rank3: refused, connection to sm90, moved from host to H200, connected to GB300",
    "Linux version 5.15.0, Linux x86_64; Nov 30 10:00:00 INFO trainer: step 7",
    'NVTE_NOTE="a\nb"; CUBLAS_STATUS_FAIL: |\n  text below',
    "smallory, mallorys and a gallery: no name",
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
    "a folder": ("--output=/scratch/alice/secret/run", "--output=<folder>"),
    "a login": ("ssh alice@dgx-04.nvidia.com", "ssh <user>@<host>"),
    "a password in an address": ("https://bob:hunter2@x.org/simple", "https://<user>:<token>@x.org/simple"),
    "a host of a network within": ("reached node3.cluster.local.", "reached <host>."),
    "a host of AWS": ("on ip-10-1-2-3 now", "on <host> now"),
    "a host of torch's rendezvous": ("[node17]:29500", "[<host>]:29500"),
    "an address with a port": ("10.0.0.1:29500", "<address>:29500"),
    "one's own name": ("Mallory's gpu-node-17: user mallory_2", "<user>'s <host>: user <user>_2"),
    "a variable": ("WANDB_MODE=offline RANK=3", "WANDB_MODE=<variable> RANK=<variable>"),
    "a variable in quotes": ("export DB_URL='a b' x", "export DB_URL=<variable> x"),
    "a dump of variables": ("{'MY_VAR': 'v', 'NVTE_X': '1'}", "{'MY_VAR': '<variable>', 'NVTE_X': '1'}"),
    "a secret by its name": ("password: hunter2, db_secret=x", "password: <token>, db_secret=<token>"),
    "a secret among what may be told": ("NVTE_API_KEY=abc", "NVTE_API_KEY=<token>"),
    "a header": ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer <token>"),
    "a folder after a colon": ("LD /opt/venv/lib:/mnt/corp/proj/lib", "LD /opt/venv/lib:<folder>"),
    "a folder of /opt": ("in /opt/secretcorp/te/run.py", "in <folder>/run.py"),
    "a folder of Windows": (r"D:\work\proj\a.py", r"<folder>\a.py"),
    "a share of Windows": (r"from \\server\share\proj now", "from <folder> now"),
    "a folder of a compiler": ("-I/scratch/proj/include/ -c", "-I<folder>/ -c"),
    "what a library holds": (
        "/srv/proj/site-packages/torch/nn/functional.py",
        "<folder>/site-packages/torch/nn/functional.py",
    ),
    "a user of an address": ("ssh zedqueen@10.0.0.5", "ssh <user>@<address>"),
    "a mail": ("élanvital@corp.com, 007bond@3com.com", "<user>@<host>, <user>@<host>"),
    "a token before a host": ("https://9f8a7b6c5d@gitlab.example.com/x", "https://<user>@<host>/x"),
    "a password with marks": ("https://bob:p/w@rd@git.corp/x", "https://<user>:<token>@<host>/x"),
    "an address within after a library": ("nccl: 10.44.12.13, host==8.8.8.8", "nccl: <address>, host==<address>"),
    "an address glued to a device": ("eth0_10.44.12.13", "eth0_<address>"),
    "an address before a colon": ("peer 2001:db8::77: refused", "peer <address>: refused"),
    "a title of several words": ("lost JOB_TITLE=train nightfall; x", "lost JOB_TITLE=<variable>; x"),
    "a line of env": ("JOB_TITLE=train for nightfall\nlang=de_DE", "JOB_TITLE=<variable>\nlang=<variable>"),
    "a list": ("A_LIST=aa,secret;b RANK=3", "A_LIST=<variable> RANK=<variable>"),
    "a variable that is JSON": ('X_Y={"a":"secret"}', "X_Y=<variable>"),
    "a proxy": ("http_proxy=http://proxy.bigcorp.net:3128 x", "http_proxy=<variable> x"),
    "a file of settings": ("JOB_NAME: night fall\nOTHER_NAME = x", "JOB_NAME: <variable>\nOTHER_NAME = <variable>"),
    "JSON in JSON": (r"{\"JOB\": \"x\"}", r"{\"JOB\": \"<variable>\"}"),
    "an option of a compiler": ("-DJOB=x $JOB=x -eJOB=x", "-DJOB=<variable> $JOB=<variable> -eJOB=<variable>"),
    "a secret in camel case": (
        '"SecretAccessKey": "a/b", accessToken=c',
        '"SecretAccessKey": <token>, accessToken=<token>',
    ),
    "a secret of an option": ("--password hunter2 ['--token', 'x']", "--password <token> ['--token', '<token>']"),
    "other headers": ("authorization: token x\nCookie: a=b; c=d", "authorization: token <token>\nCookie: <token>"),
    "a signature": ("https://x.org/c?sv=1&sig=abc%2B", "https://x.org/c?sv=1&sig=<token>"),
    "a value of two lines": ('export JOB_TITLE="train\nnightfall"; x', "export JOB_TITLE=<variable>; x"),
    "a secret of two lines": ("db_password='a\nhunter2' x", "db_password=<token> x"),
    "a value that goes on": ("JOB_TITLE=night\\\nfall x", "JOB_TITLE=<variable> x"),
    "a block of YAML": ("- JOB_NOTE: |\n    night\n\n    fall\n  b: 1", "- JOB_NOTE: <variable>\n  b: 1"),
    "a secret in the line below": ("token:\n  abc123def", "token:\n  <token>"),
    "a function of a shell": ("BASH_FUNC_x%%=() {  echo night\n}\nok", "BASH_FUNC_x%%=<variable>\nok"),
    "a name with a number": ("mallory2 and gpu7mallory", "<user> and gpu7<user>"),
    "a name in camel case": ("runMalloryTest of MalloryLinear", "run<user>Test of <user>Linear"),
    "a host otherwise written": ("GPU_NODE_17, gpunode17", "<host>, <host>"),
    "a neighbour of one's own host": ("gpu-node-18 lost", "<host> lost"),
    "a host of an address": ("tcp://nid001234:29500", "tcp://<host>:29500"),
    "a host of NCCL": ("dgx04:1234:5678 [3] NCCL WARN", "<host>:1234:5678 [3] NCCL WARN"),
    "hosts of Slurm": (
        "srun: error: nid[0012-0014]: tasks 0-3: Exited; ON alpha CANCELLED",
        "srun: error: <host>: tasks 0-3: Exited; ON <host> CANCELLED",
    ),
    "a host of a kernel": ("Linux buildbox 5.15.0-91-generic #101", "Linux <host> 5.15.0-91-generic #101"),
    "a host of a system's log": ("Nov 30 10:00:00 buildbox kernel: NVRM", "Nov 30 10:00:00 <host> kernel: NVRM"),
    "a host that does not answer": ("failed to connect to node17: timeout", "failed to connect to <host>: timeout"),
    "a host of an option": ("--master_addr dgx04 on host dgx05", "--master_addr <host> on host <host>"),
    "a host with a port": ("at dgx04:29500", "at <host>:29500"),
    "a key": ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nxx\n-----END RSA PRIVATE KEY-----!", "<token>!"),
}


@pytest.mark.parametrize(("text", "left"), HIDDEN.values(), ids=HIDDEN)
def test_what_is_nobodys_business_reads_as_what_it_was(text: str, left: str) -> None:
    assert cleared(text, MINE) == left


def test_a_name_that_is_given_away_once_goes_everywhere() -> None:
    names = names_in(["/home/alice/x", "bob@dgx-04.example.com"], NOBODY)
    assert cleared("alice and bob on dgx-04", names) == "<user> and <user> on <host>"


def test_a_host_that_is_told_once_goes_everywhere_with_its_neighbours() -> None:
    names = names_in(
        ["Connection to nid001234 refused", "10:00 nid001240 lost", "Nov 3 Linux kernel 5.15.0 #1"], NOBODY
    )
    assert cleared("nid001234 and nid001240, by the kernel", names) == "<host> and <host>, by the kernel"


def test_a_short_name_and_a_name_of_numbers_take_no_number_with_them() -> None:
    names = Names(frozenset({"bob", "float", "uint"}), frozenset({"h100"}))
    assert cleared("bob1, float32, uint8, H200", names) == "bob1, float32, uint8, H200"


def test_a_name_behind_an_escaped_newline_is_the_name() -> None:
    decoded = msgspec.json.decode(b'{"why": ["\\nalice@dgx1"]}')
    assert "alice" in names_in(strings(decoded), NOBODY).users


@pytest.mark.parametrize("word", ("wgrad", "module", "api", "case", "MISSING", "torch"))
def test_a_word_of_gradcheck_is_nobodys_name(word: str) -> None:
    names = names_in(["see x@module, dy@wgrad"], Names(users=frozenset({word}), hosts=frozenset({word})))
    assert (names.users, names.hosts) == (frozenset(), frozenset())
    assert cleared(f"the {word} of it", Names(users=frozenset({word}))) == f"the {word} of it"


def test_a_hub_for_everybody_is_no_host_of_ones_own() -> None:
    names = names_in(["git@github.com:NVIDIA/TransformerEngine"], NOBODY)
    assert cleared("https://github.com/NVIDIA", names) == "https://github.com/NVIDIA"


def test_root_is_nobodys_name_and_a_short_name_is_no_reason_to_spoil_words() -> None:
    names = names_in(["/home/x/run", "root@localhost"], NOBODY)
    assert cleared("x = root of localhost, /home/x/run", names) == "x = root of localhost, <home>/run"


def test_a_script_keeps_its_words() -> None:
    assert without_marks("torch = 1  # /home/torch", Names(users=frozenset({"torch"}))) == "torch = 1  # <home>"


def test_a_record_can_be_read_back_whatever_its_users_name() -> None:
    names = Names(users=frozenset({"verdict", "passed", "torch", "wgrad"}))
    line = {"event": "verdict", "outcome": "PASSED", "roles": {"wgrad": "PASSED"}, "axes": {"provider": "torch"}}
    assert cleared_json({**line, "why": "of a verdict"}, names) == {**line, "why": "of a <user>"}


def test_variables_that_may_not_be_told_are_left_out_by_name_as_well() -> None:
    told = {
        "variables": {"NVTE_A": "1", "HOSTNAME": "x", "CUBLAS_TOKEN": "y"},
        "options": {"--known": "/home/al/k.toml"},
    }
    assert cleared_json(told, NOBODY) == {"variables": {"NVTE_A": "1"}, "options": {"--known": "<home>/k.toml"}}


def test_versions_stay_whatever_their_form() -> None:
    assert cleared_json({"versions": {"x": "1.2.3.4"}}, NOBODY) == {"versions": {"x": "1.2.3.4"}}
    assert cleared_json({"versions": {"x": "on 1.2.3.4"}}, NOBODY) == {"versions": {"x": "on <address>"}}


def test_a_build_of_ones_own_does_not_say_whose() -> None:
    names = {"versions": {"transformer_engine": "2.17.1+mallory.gpu-node-17"}}
    assert cleared_json(names, MINE) == {"versions": {"transformer_engine": "2.17.1+<user>.<host>"}}


def test_the_keys_of_what_a_provider_tells_are_foreign_text() -> None:
    told = {"effective": {"/home/al/proj": "v", "mallory": 1}, "seconds": 1.0, "roles": {"wgrad": "PASSED"}}
    names = Names(users=frozenset({"mallory", "seconds"}))
    assert cleared_json(told, names) == {**told, "effective": {"<home>/proj": "v", "<user>": 1}}


def test_a_variable_is_one_line_and_an_image_has_a_name() -> None:
    told = {"variables": {"NVTE_A": "1\n\n# x", "NVIDIA_PYTORCH_VERSION": "26.06\n\n<img src=x>"}}
    assert cleared_json(told, NOBODY) == {"variables": {"NVTE_A": "1 # x"}}
    named = {"variables": {"NVIDIA_PYTORCH_VERSION": "26.06"}}
    assert cleared_json(named, NOBODY) == named


SECRETS = {
    **TOKENS,
    "npm": "npm" + "_" + "aB3d" * 9,
    "Docker": "dckr" + "_pat_" + "aB3-" * 7,
    "Stripe": "sk" + "_live_" + "aB3d" * 6,
    "Google": "AI" + "za" + "SyA1" * 9,
    "a user": "mallory",
    "a host": "gpu-node-17",
    "an address within": "10.44.12.13",
    "a long address": "2001:db8::77",
    "a mail": "zedqueen@corp.example.com",
    "a home": "/home/zedqueen",
    "a folder": "/data/secretproj/zed/",
    "a network card": "02:42:ac:11:00:02",
}
# What a log puts before and behind a word; the text between is the same in all of them.
AROUND = (
    ("\x1b[31m", "\x1b[0m"),
    ("x\x1b[1;33m", "\x1b[m"),
    (r"\x1b[31m", r"\x1b[0m"),
    (r"\033[1m", r"\033[0m"),
    (r"b'id:\n", r"\n'"),
    (r"\\n", r"\\t"),
    (r"\x0a", r"\x00"),
    (r"\xe2\x80\x99", r"\xe2\x80\x99"),
    (r"\u000a", r"\u0009"),
    ("%20", "%20"),
    ("%250A", "%0A"),
    ("&lt;", "&gt;"),
    ("&quot;", "&#34;"),
    ("<", ">"),
    ("('", "')"),
    ('["', '"]'),
    (r"{\"a\": \"", r"\"}"),
    ("{", "}"),
    ("`", "`"),
    ("\u200b", "\u200b"),
    ("\x00", "\x07"),
    ("\t", "\n"),
    (": ", ", "),
    ("=", ";"),
)
WORDS = st.lists(st.sampled_from(("error", "at", "rank 3", "bf16", "wgrad", "sm_90", "13.5.1", "(4, 96)")), max_size=3)


@settings(max_examples=500, deadline=None)
@example([], [(r"\x0a", r"\x00"), ("\x1b[31m", "\x1b[0m")], "gpu-node-17", [])
@given(WORDS, st.lists(st.sampled_from(AROUND), max_size=3), st.sampled_from(sorted(SECRETS.values())), WORDS)
def test_no_secret_is_left_whatever_stands_around_it(
    before: list[str], around: list[tuple[str, str]], secret: str, after: list[str]
) -> None:
    said = " ".join([*before, "".join(left for left, _ in around)])
    text = said + secret + " ".join(["".join(right for _, right in reversed(around)), *after])
    for written in (text, repr(text), json.dumps(text), json.dumps(json.dumps(text)), quote(text), escape(text)):
        left = cleared(written, MINE)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", left)
        assert not [one for one in (left, plain, unquote(plain)) if secret in one or "zedqueen" in one]
        # In an address, what follows a folder is of its path.
        assert written == quote(text) or [word for word in (*before, *after) if word not in left] == []


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
