"""What changed in a case from one run to another? Its outcome first; then the path, margins and time of what ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gradcheck_cli.judge.bounds import grown, slowed
from gradcheck_cli.judge.narrowing import asked_for, narrower
from gradcheck_cli.records.case import AXES, LAYER
from gradcheck_cli.records.difference import ABSENT, KINDS, Change, Difference, Kind, Side
from gradcheck_cli.records.environment import Environment
from gradcheck_cli.records.failure import faults
from gradcheck_cli.records.observation import ROLES
from gradcheck_cli.records.report import Report
from gradcheck_cli.records.verdict import Outcome, Verdict

# (provider, api) in the old run -> those that stand in their place in the new one.
Mapped = Mapping[tuple[str, str], tuple[str, str]]
Key = tuple[object, ...]


def difference(old: Report, new: Report, mapped: Mapped) -> Difference:
    """Pair the cases of two runs, by id or as mapped, and say what changed in each pair: the gravest kind first."""
    pairs = list(_pairs(old.verdicts, new.verdicts, mapped))
    changes = [change for before, after in pairs for change in _changes(before, after)]
    kinds = list(KINDS)
    left, right = {before.case for before, _ in pairs}, {after.case for _, after in pairs}
    right_before = [one for one in old.verdicts if one.case not in left and one.outcome is Outcome.PASSED]
    lost = [one for one in right_before if not mapped and asked_for(one, new.run, old.run)]
    changes += [_lost(verdict) for verdict in lost]
    excuse = "--provider-map" if mapped else " ".join(narrower(new.run, old.run))
    return Difference(
        old=Side(run=old.run, tally=old.tally),
        new=Side(run=new.run, tally=new.tally),
        environment=_environment(old.environment, new.environment),
        compared=len(pairs),
        changes=sorted(changes, key=lambda change: kinds.index(change.kind)),
        only_old=[verdict.case for verdict in old.verdicts if verdict.case not in left],
        not_asked=excuse if len(lost) < len(right_before) else "",
        only_new=[verdict.case for verdict in new.verdicts if verdict.case not in right],
    )


def _pairs(old: Sequence[Verdict], new: Sequence[Verdict], mapped: Mapped) -> Iterator[tuple[Verdict, Verdict]]:
    by_key: dict[Key, list[Verdict]] = {}
    targets = set(mapped.values())
    for verdict in new:
        by_key.setdefault(("id", verdict.case), []).append(verdict)
        if _layer(verdict) in targets:
            by_key.setdefault(_key(verdict, _layer(verdict)), []).append(verdict)
    for verdict in old:
        target = mapped.get(_layer(verdict))
        key = ("id", verdict.case) if target is None else _key(verdict, target)
        for partner in by_key.get(key, ()):
            yield verdict, partner


def _key(verdict: Verdict, layer: tuple[str, str]) -> Key:
    """The axes of a case under the name of another layer; `path` is a switch of one layer, and has no partner."""
    axes = verdict.every_axis
    names = [*AXES, *sorted(set(axes) - set(AXES))]
    return layer, *((name, axes[name]) for name in names if name not in (*LAYER, "path"))


def _layer(verdict: Verdict) -> tuple[str, str]:
    return str(verdict.axes.get("provider", "")), str(verdict.axes.get("api", ""))


def _changes(before: Verdict, after: Verdict) -> Iterator[Change]:
    changed = _roles(before, after)
    kind = _kind(before.outcome, after.outcome, changed)
    if kind:
        why = after.worst.why if after.worst else ""
        yield _change(kind, (before, after), before.outcome.value, after.outcome.value, roles=changed, why=why)
    was, now = faults(before), faults(after)
    if not kind and was.keys() != now.keys():
        yield _change("outcome", (before, after), ", ".join(was.values()), ", ".join(now.values()))
    if before.outcome.executed and after.outcome.executed:
        yield from _of_executed(before, after)


def _of_executed(before: Verdict, after: Verdict) -> Iterator[Change]:
    """What can only be compared where both ran."""
    pair = (before, after)
    for name, ran in before.effective.items():
        # What a case asks for itself is the same in both; of two layers each may know things that the other does not.
        if after.effective.get(name, ran) != ran:
            yield _change("path", pair, f"{name}={ran}", f"{name}={after.effective[name]}")
    for role, margin in before.margins.items():
        left = after.margins[role].after_rounding if role in after.margins else 0.0
        if grown(margin.after_rounding, left):
            yield _change("margin", pair, f"{margin.after_rounding:.2g}", f"{left:.2g}", role=role)
    if slowed(before.seconds, after.seconds):
        yield _change("slower", pair, f"{before.seconds:.1f} s", f"{after.seconds:.1f} s")


def _roles(before: Verdict, after: Verdict) -> dict[str, tuple[Outcome, Outcome]]:
    """The roles that both have and whose outcome changed."""
    both = {str(role): (before.of_role(role), after.of_role(role)) for role in ROLES}
    return {role: (was, now) for role, (was, now) in both.items() if was and now and was is not now}


def _kind(was: Outcome, now: Outcome, roles: Mapping[str, tuple[Outcome, Outcome]]) -> Kind | None:
    """What has become of a case; None where nothing has."""
    if (was.green and not now.green) or any(old is Outcome.PASSED and not new.green for old, new in roles.values()):
        return "regression"
    if was is now and not roles:
        return None
    if was is Outcome.PASSED:
        return "coverage lost"
    if now is Outcome.PASSED:
        return "coverage gained" if was.green else "mended"
    return "outcome"


def _lost(verdict: Verdict) -> Change:
    return Change(kind="coverage lost", case=verdict.case, axes=verdict.axes, old=verdict.outcome.value, new=ABSENT)


def _change(kind: Kind, pair: tuple[Verdict, Verdict], old: str, new: str, **more: object) -> Change:
    before, after = pair
    renamed = after.case if after.case != before.case else ""
    told = {"kind": kind, "case": before.case, "new_case": renamed, "axes": before.axes, "old": old, "new": new}
    return Change(**told | more)  # type: ignore[arg-type]


def _environment(old: Environment, new: Environment) -> dict[str, tuple[str, str]]:
    """What differs, by name: versions as they were loaded, the device, and the variables that change behaviour."""
    was, now = _facts(old), _facts(new)
    names = dict.fromkeys([*was, *now])
    return {name: (was.get(name, ""), now.get(name, "")) for name in names if was.get(name) != now.get(name)}


def _facts(environment: Environment) -> dict[str, str]:
    capability = "sm_{}{}".format(*environment.compute_capability) if environment.compute_capability else ""
    device = {"device": environment.device_name or environment.device, "compute capability": capability}
    return {name: value for name, value in (device | environment.versions | environment.variables).items() if value}
