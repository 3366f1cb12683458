"""Do the kernels that were seen show what was asked, and what the candidate says of itself?

No kernel is no evidence: an older observation has none, nor has a case whose configuration was looked at before.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

from gradcheck_cli.records.case import Case
from gradcheck_cli.records.kernels import PATHS, path_shown, shown
from gradcheck_cli.records.observation import Observation, Phase

PHASES: tuple[Phase, ...] = get_args(Phase)
SAID = {"native", "legacy"}


class Contradiction(NamedTuple):
    """The axis on which kernels show something else, and both in words, a kernel among them."""

    axis: str
    words: str


def effective(case: Case, observation: Observation) -> dict[str, str | int]:
    """What really ran, under the names of the axes: as the layer says it, and CUTLASS where its kernels show it.

    Whether a legacy path was CUTLASS is unknown where nobody looked.
    """
    said, seen = observation.effective, observation.kernels
    if said.get("path") != "legacy" or case.provider != "te":
        return said
    # A frozen input has no dgrad, and a wgrad may be either's.
    ran = path_shown([name for name in seen if name.startswith("forward: ") or not case.frozen_input])
    if "cutlass" in ran.split(", then "):
        return {**said, "path": ran}
    looked = any(not name.partition(": ")[2].startswith("aten::") for name in seen)
    return said if looked or case.path != "cutlass" else {**said, "path": "unknown"}


def contradiction(case: Case, observation: Observation) -> Contradiction | None:
    """What the kernels of a case contradict; None where they fit, or tell nothing."""
    seen = observation.kernels
    if case.provider != "te":
        return _of_torch(case, seen)
    return _of_path(observation) or _of_recipe(case, observation)


def _of_path(observation: Observation) -> Contradiction | None:
    """The path that a layer says it took, against those whose kernels ran; of a chain both of each."""
    said, seen = str(observation.effective.get("path", "")), observation.kernels
    told = set(said.split(" and "))
    if not told <= SAID:
        return None
    other = next((path for path in PATHS if path not in told and shown(path, seen)), None)
    # CUTLASS is a way of the legacy path, of which no layer says that it took it.
    if not other or (other == "cutlass" and "legacy" in told):
        return None
    return Contradiction("path", f"the candidate says path={said}, and path={other} ran: {shown(other, seen)}")


def _of_recipe(case: Case, observation: Observation) -> Contradiction | None:
    """What quantises casts before the first GEMM of a phase, and gives each FP8; what does not never has FP8 at all."""
    seen = observation.kernels
    if case.recipe == "none":
        cast = shown("fp8", seen)
        return Contradiction("recipe", f"asked recipe=none, and a kernel works on FP8: {cast}") if cast else None
    multiplied = [phase for phase in PHASES if any(shown(path, seen, phase) for path in PATHS)]
    looked_at = (_of_phase(case, observation, phase) for phase in multiplied)
    return next((found for found in looked_at if found), None)


def _of_phase(case: Case, observation: Observation, phase: Phase) -> Contradiction | None:
    """A phase with GEMMs: an override leaves the backward's operands as given, or as its forward's were dequantised."""
    seen, quantised = observation.kernels, shown("fp8_gemm", observation.kernels, phase)
    if phase != "forward" and case.backward_override != "none":
        # What says that it follows none is another case by its own word.
        if not quantised or observation.effective.get("backward_override") != case.backward_override:
            return None
        said = f"asked backward_override={case.backward_override}, and a GEMM of the {phase} has FP8 operands"
        return Contradiction("backward_override", f"{said}: {quantised}")
    gemm = next(name for path in PATHS if (name := shown(path, seen, phase)))
    if not shown("fp8", seen, phase):
        return Contradiction(
            "recipe", f"asked recipe={case.recipe}, and no kernel of the {phase} works on FP8: {gemm} ran"
        )
    plain = shown("plain_gemm", seen, phase)
    said = f"asked recipe={case.recipe}, and a GEMM of the {phase} has no FP8 operands: {plain}"
    return Contradiction("recipe", said) if plain else None


def _of_torch(case: Case, seen: list[str]) -> Contradiction | None:
    """What multiplies by torch's operators, the same on every device; a plug-in's api of that name as well."""
    for phase in PHASES:
        grouped, other = shown("grouped_mm", seen, phase), shown("gemm", seen, phase)
        if case.api == "grouped_mm" and other and not grouped:
            return Contradiction("api", f"asked api=grouped_mm, and no grouped GEMM ran: {other} did")
        if case.api == "loop" and grouped:
            return Contradiction("api", f"asked api=loop, and a grouped GEMM ran: {grouped}")
    return None
