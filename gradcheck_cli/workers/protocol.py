"""What does a worker say to its parent, and how is its ending read?

Jobs go down the worker's stdin, messages come up a pipe of their own, each as one line of JSON. Stdout is not
part of it: libraries print there.
"""

from __future__ import annotations

import signal
from typing import Any

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
    try:
        line = msgspec.json.encode(record)
    except UnicodeEncodeError:  # a lone surrogate, from a file name or a variable: the rest of the message is as good
        line = msgspec.json.encode(_writable(msgspec.to_builtins(record)))
    return line + b"\n"


def _writable(value: Any) -> Any:
    """The same with each lone surrogate as its escape, in keys too."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_writable(name): _writable(one) for name, one in value.items()}
    return [_writable(one) for one in value] if isinstance(value, list | tuple) else value


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
