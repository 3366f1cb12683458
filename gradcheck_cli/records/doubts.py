"""Where is what the capability table says of Transformer Engine unconfirmed?"""

from __future__ import annotations

from gradcheck_cli.records.environment import Environment, Version

# What was read of Transformer Engine, the compute capability on which it was run, and the one that is assumed where no
# device answers.
READ: tuple[Version, Version] = ((2, 14), (2, 20, 2))
SEEN = ASSUMED = (9, 0)


def doubts(environment: Environment) -> list[str]:
    """Why what the table says of Transformer Engine is unconfirmed here: nobody has read or run it there."""
    te, here = environment.version("transformer_engine"), environment.compute_capability or ASSUMED
    first, last = READ
    unread = [] if first <= te[: len(last)] <= last else [environment.versions.get("transformer_engine", "(none)")]
    read, seen = (".".join(map(str, number)) for number in (last, SEEN))
    return [
        *(f"Transformer Engine {version}; the sources of 2.14 to {read} were read" for version in unread),
        *([f"compute capability {here[0]}.{here[1]}, read from sources; {seen} was seen"] if here != SEEN else []),
    ]
