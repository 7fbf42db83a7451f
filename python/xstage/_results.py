"""Results as frozen dataclasses. Field names are those of the tool's JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


class _Record:
    @classmethod
    def from_dict(cls, values: dict[str, Any]):
        names = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers, as JSON has them."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Link(_Record):
    """A measured link. `sha256` names the profile that later results stand on."""

    native: Any = field(repr=False, compare=False)
    name: str
    sha256: str
    pair: str
    date: str | None
    path: str
    kinds: list[str]
    num_sms: int

    def to_dict(self) -> dict[str, Any]:
        """The whole profile, as in its file (schema xstage.link)."""
        return self.native.to_dict()


@dataclass(frozen=True)
class Counterfactual(_Record):
    issue_ns: float
    period_ns: float


@dataclass(frozen=True)
class Prediction(_Record):
    kind: str
    producers: int
    bytes: float
    gap_ns: float
    issue_ns: float
    t0_ns: float
    wait_ns: float
    period_ns: float
    regime: str  # "free" or "drain_limited"
    demand_bytes_per_ns: float
    drain_rate_bytes_per_ns: float
    onset_gap_ns: float
    max_free_bytes: float | None
    isolated_issue_ns: float | None
    isolated_issue_slowest_ns: float | None
    isolated_visible_ns: float | None
    first_stalled_burst: int | None
    coupled: Counterfactual
    unbounded: Counterfactual
    alpha_beta: Counterfactual

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Prediction:
        others = {name: Counterfactual.from_dict(values[name])
                  for name in ("coupled", "unbounded", "alpha_beta")}
        return super().from_dict({**values, **others})


@dataclass(frozen=True)
class Send(_Record):
    kind: str
    chunk_bytes: int
    steps_per_chunk: int
    completion: str


@dataclass(frozen=True)
class Candidate(_Record):
    name: str
    evidence: str  # "simulated", "closed_form" or "measured"
    runnable: bool
    total_ns: float
    compute_ns: float
    exposed_ns: float
    bound_ns: float
    held_by: str
    split_tail: bool
    tile_order: str | None
    schedule: str | None
    send: Send | None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Candidate:
        send = values["send"]
        return super().from_dict({**values, "send": Send.from_dict(send) if send else None})


@dataclass(frozen=True)
class Plan(_Record):
    workload: str
    ranks: int
    link: dict[str, Any]
    costs: dict[str, Any]
    shape: str
    sent_bytes: float
    drain_ns: float
    compute_ns: float
    choice: str
    reason: str
    comparison: str
    notes: list[str]
    candidates: list[Candidate]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        candidates = [Candidate.from_dict(c) for c in values["candidates"]]
        return super().from_dict({**values, "candidates": candidates})

    @property
    def chosen(self) -> Candidate:
        return next(c for c in self.candidates if c.name == self.choice)
