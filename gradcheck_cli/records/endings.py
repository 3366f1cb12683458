"""In which ways does a case not come to its end? Each is a layer of the provider `faults`."""

from __future__ import annotations

from typing import NamedTuple

from gradcheck_cli.records.verdict import Outcome


class Ending(NamedTuple):
    """A way in which a case does not come to its end; an api of the provider `faults` as well."""

    summary: str
    deserves: Outcome
    needs_cuda: bool = False
    in_wgrad: bool = False  # where a gradient of its weights is computed, and not in its forward


ENDINGS: dict[str, Ending] = {
    "segfault": Ending("reads address 0", Outcome.CRASHED),
    "abort": Ending("calls abort()", Outcome.CRASHED),
    "killed": Ending("is sent SIGKILL, as where the machine runs out of memory", Outcome.CRASHED),
    "hang": Ending("never returns", Outcome.TIMED_OUT),
    "hang_in_c": Ending("never returns from a call that holds the interpreter's lock", Outcome.TIMED_OUT),
    "silent_exit": Ending("ends the process with exit code 0, without a word", Outcome.CRASHED),
    "garbled": Ending("answers with a line that is no answer", Outcome.CRASHED),
    "orphans": Ending("aborts, and leaves processes running, one in a session of its own", Outcome.CRASHED),
    "flood": Ending("writes 64 MiB to stderr, and aborts", Outcome.CRASHED),
    "out_of_memory": Ending("asks for more memory than there is", Outcome.RAISED),
    "raises": Ending("raises in its forward", Outcome.RAISED),
    "raises_in_wgrad": Ending("raises where its weights' gradients are computed", Outcome.RAISED, in_wgrad=True),
    "poisoned_context": Ending(
        "fails an assertion on the CUDA device, after which no call of the process succeeds",
        Outcome.RAISED,
        needs_cuda=True,
    ),
    "hang_in_kernel": Ending("waits for a kernel that does not end", Outcome.TIMED_OUT, needs_cuda=True),
    "hoards_memory": Ending("takes all memory of the CUDA device, and keeps it", Outcome.RAISED, needs_cuda=True),
}
