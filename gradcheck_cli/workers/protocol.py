"""What does a worker say to its parent, and how is its ending read?

Jobs go down the worker's stdin, messages come up a pipe of their own, each as one line of JSON. Stdout is not
part of it: libraries print there.
"""

from __future__ import annotations

import signal

import msgspec

from gradcheck_cli.records.base import Record
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.observation import Observation


class Ready(Record, frozen=True, kw_only=True, tag="ready", tag_field="message"):
    """The imports are done: the first message of a worker that can run cases."""

    environment: Environment


class Stopped(Record, frozen=True, kw_only=True, tag="stopped", tag_field="message"):
    """The last message of a worker that cannot start, or cannot go on, and says why in words for the user."""

    exit_code: int
    text: str


class Result(Record, frozen=True, kw_only=True, tag="result", tag_field="message"):
    """The answer to a job."""

    observation: Observation


class Failed(Record, frozen=True, kw_only=True, tag="failed", tag_field="message"):
    """Another answer to a job: a defect of gradcheck itself, which says nothing about the candidate."""

    traceback: str


Message = Ready | Stopped | Result | Failed
_MESSAGE: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def encode(record: Record) -> bytes:
    """A job or a message as one line; JSON escapes newlines inside texts, so the last byte is the only one."""
    return msgspec.json.encode(record) + b"\n"


def decode(line: bytes) -> Message:
    """Read a message back; msgspec.MsgspecError where the line is none."""
    return _MESSAGE.decode(line)


def exit_status(returncode: int | None) -> str:
    """How a process ended, in words: "signal 11 (SIGSEGV)", "exit code 3"."""
    if returncode is None:
        return "still there after SIGKILL"
    if returncode >= 0:
        return f"exit code {returncode}"
    names = {number.value: number.name for number in signal.Signals}
    return f"signal {-returncode} ({names.get(-returncode, 'no name')})"
