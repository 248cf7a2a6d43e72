"""``quantglow.ep.report``: what runs where in a session of onnxruntime, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from quantglow.ep.interface import IN_MACHINE_CODE, IN_ONNXRUNTIME, IN_PYTHON
from quantglow.ep.reports import Claim, record_of
from quantglow.ep.sessions import is_session
from quantglow.support.errors import OptionError

PROVIDER = "QuantglowExecutionProvider"

TOO_SMALL = "parts without a product or a recurrence are not worth the way into them"

WAYS = {
    IN_MACHINE_CODE: "in machine code",
    IN_PYTHON: "in Python",
    IN_ONNXRUNTIME: "by onnxruntime",
}


@dataclass(frozen=True)
class PartReport:
    """A part of a session's graph: its number of nodes, the answers at hand for combinations of
    input shapes, and how many calls were answered in each way."""

    nodes: int
    answers: int
    calls: dict[int, int]


@dataclass(frozen=True)
class SessionReport:
    """The nodes of a session by what runs them; printed, it is a text for a terminal.

    model  the path that the session was made from, "" for bytes
    claim  the nodes that quantglow took, and reasons
    parts  what it compiled, in the order of the graph
    """

    model: str
    claim: Claim
    parts: tuple[PartReport, ...]

    def __str__(self) -> str:
        return "\n".join([self._title(), *self._parts_text(), *self._left_text()])

    def _title(self) -> str:
        claim, name = self.claim, os.path.basename(self.model) or "a model from bytes"
        parts = f"{claim.groups} part{'' if claim.groups == 1 else 's'}"
        title = f"{name}: quantglow runs {claim.claimed} of {claim.nodes} nodes in {parts}"
        total = claim.macs + claim.macs_left
        if not total:
            return title
        return f"{title}, {claim.macs / total:.1%} of the multiply-accumulates"

    def _parts_text(self) -> Iterator[str]:
        if not self.parts:
            return
        heads = ["part", "nodes", "answers", *(f"calls {text}" for text in WAYS.values())]
        yield ""
        yield "  ".join(heads)
        for number, part in enumerate(self.parts, 1):
            figures = [number, part.nodes, part.answers, *(part.calls[way] for way in WAYS)]
            yield "  ".join(
                f"{figure:>{len(head)},}" for figure, head in zip(figures, heads, strict=True)
            )

    def _left_text(self) -> Iterator[str]:
        reasons = dict(reason.partition(": ")[::2] for reason in self.claim.reasons)
        if not self.claim.left:
            yield from ("", *self.claim.reasons) if self.claim.reasons else ()
            return
        yield ""
        yield "left to onnxruntime:"
        width = max(len(f"{count:,} {op}") for op, count in self.claim.left.items())
        for op, count in sorted(self.claim.left.items(), key=lambda item: -item[1]):
            yield f"  {f'{count:,} {op}':<{width}}  {reasons.get(op, TOO_SMALL)}"


def report(session: Any) -> SessionReport:
    """Report what runs where in a session with the provider: claimed nodes, their share of the
    multiply-accumulates, reasons for the other nodes, and the calls so far.

    ``session``: an ``onnxruntime.InferenceSession``.  Raises ``OptionError`` for anything else, and
    for a session without the provider.
    """
    if not is_session(session):
        raise OptionError(
            f"report takes an onnxruntime.InferenceSession, not {type(session).__name__}. Remedy: "
            "pass the session that the package has made."
        )
    record, has_provider = record_of(session), PROVIDER in session.get_providers()
    if has_provider and (record is None or not record.claims):
        raise OptionError(
            "the session's model was stored with its code, and what runs where was decided then. "
            "Remedy: report on the session that stored it."
        )
    if record is None or not has_provider:
        raise OptionError(
            f"the session runs without {PROVIDER}: it has {', '.join(session.get_providers())}. "
            "Remedy: onnxruntime_ep_quantglow.register(), and its name first in providers; or "
            "use() before a package makes its sessions."
        )
    parts = tuple(
        PartReport(
            part.nodes, len(part.counts.programs), {way: part.counts.of(way) for way in WAYS}
        )
        for part in record.live_parts()
    )
    return SessionReport(getattr(session, "_model_path", None) or "", record.claims[-1], parts)
