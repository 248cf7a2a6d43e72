"""Reports on the graphs that onnxruntime showed: nodes that quantglow took, and the others."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MOST_CLAIMS = 256
"""Maximum number of graphs that are remembered, the last ones."""


@dataclass(frozen=True)
class Claim:
    """The nodes of a graph that quantglow took: so many ``claimed`` of all ``nodes``, in ``groups``
    parts; ``reasons`` why it took no others, each once."""

    nodes: int
    claimed: int
    groups: int
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"quantglow takes {self.claimed} of {self.nodes} nodes in {self.groups} part(s)"
        return "; ".join([text, *self.reasons])


_claims: deque[Claim] = deque(maxlen=MOST_CLAIMS)


def remember(claim: Claim) -> None:
    """Keep a claim for ``claims``."""
    _claims.append(claim)


def claims() -> list[Claim]:
    """The claims of all sessions of this process, the last one last."""
    return list(_claims)
