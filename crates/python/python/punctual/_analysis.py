"""Bounds of a network as plain objects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

from . import _native
from ._native import Network
from ._rows import Rows


@dataclass(frozen=True)
class PathBound:
    """The bounds of a flow to one of its destinations.

    Each bound is safe: no behaviour of the network exceeds it. `None` is no
    bound: a link on the path is overloaded, or none was found.
    """

    flow: str
    """The flow's name."""
    path: int
    """Index of the path, from 0."""
    links: Tuple[str, ...]
    """Links from the publisher to the destination."""
    prio: int
    """The flow's priority; the higher, the more urgent."""
    period_ns: int
    """Least time between two messages, ns."""
    jitter_ns: int
    """Release jitter, ns; it is part of every bound."""
    deadline_ns: int
    """Deadline from the nominal release, ns."""
    wcrt_ns: Optional[int]
    """The tightest bound, ns: the best of all ways to cut the path into segments."""
    ha_ns: Optional[int]
    """The holistic bound, ns: one port after the other (Tindell & Clark 1994,
    with the busy period of Davis et al. 2007)."""
    ta_ns: Optional[int]
    """The trajectory bound, ns: the whole path at once (Martin & Minet 2006,
    corrected)."""

    @property
    def slack_ns(self) -> Optional[int]:
        """What is left to the deadline, ns; negative beyond it, `None` without a bound."""
        return None if self.wcrt_ns is None else self.deadline_ns - self.wcrt_ns

    @property
    def schedulable(self) -> bool:
        """There is a bound, and it is at most the deadline."""
        return self.wcrt_ns is not None and self.wcrt_ns <= self.deadline_ns

    def to_dict(self) -> Dict[str, Any]:
        """All of it, with `slack_ns` and `schedulable`, under the names of
        `punctual analyze --format json`."""
        links = list(self.links)
        derived = {"slack_ns": self.slack_ns, "schedulable": self.schedulable}
        return {**asdict(self), "links": links, **derived}


class Analysis(Rows[PathBound]):
    """The bounds of a network: one entry for each flow and path, in the order
    of the network.

    `analysis["m1"]` is the entry of a flow with one path, `analysis["m1", 2]`
    that of a path.
    """

    @property
    def schedulable(self) -> bool:
        """Every flow keeps its deadline to every destination."""
        return all(bound.schedulable for bound in self)

    def to_dict(self) -> Dict[str, Any]:
        """`schedulable`, and the records under `results`."""
        return {"schedulable": self.schedulable, "results": self.records()}

    def __repr__(self) -> str:
        late = sum(not bound.schedulable for bound in self)
        verdict = f"{late} not schedulable" if late else "schedulable"
        return f"<Analysis: {len(self)} bounds, {verdict}>"


def bound_of(row: Dict[str, Any]) -> PathBound:
    """A row of the compiled part as an object."""
    return PathBound(**{**row, "links": tuple(row["links"])})


def analyze(network: Network) -> Analysis:
    """Bounds for all flows of a network.

    Every bound that is given is safe. `wcrt_ns` is the one to rely on; `ha_ns`
    and `ta_ns` show what one port after the other, and the whole path at once,
    give.
    """
    return Analysis([bound_of(row) for row in _native.analyze(network)])


def tfa(network: Network) -> Dict[Tuple[str, int], Optional[int]]:
    """Bounds by network calculus, ns, by flow and path: a cross-check.

    Total flow analysis per class with link shaping (TFA++; Mifdaoui & Leydier
    2017). Safe, and mostly looser than `analyze`; `None` is no bound.
    """
    return by_path(network, _native.tfa(network))


def by_path(
    network: Network, values: List[List[Optional[int]]]
) -> Dict[Tuple[str, int], Optional[int]]:
    """What is given in the order of flows and paths, by their names."""
    flows = zip(network.flow_ids, values)
    return {(flow, path): value for flow, paths in flows for path, value in enumerate(paths)}
