"""Admission as plain objects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional

from . import _native
from ._analysis import Analysis, PathBound, analyze, bound_of
from ._native import Network


@dataclass(frozen=True)
class Refusal:
    """Why flows are not admitted."""

    message: str
    """In words."""
    kind: str
    """`taken`: a flow of this name is admitted; `overload`: a link has no time
    left at the flow's priority; `late`: a message may come too late."""
    flow: str
    """The flow that stands against it: a new one, or one that is admitted."""
    new: bool
    """It is one of the new ones."""
    others: int
    """Flows unlike it that may be late, too, as far as was looked."""
    path: Optional[int]
    """Index of the path on which it may be late."""
    bound_ns: Optional[int]
    """What it could take, ns; `None` if there is no bound."""
    deadline_ns: Optional[int]
    """Its deadline, ns, if it may be late."""
    link: Optional[str]
    """The link that is overloaded."""
    load_percent: Optional[int]
    """The link's load by what is not less urgent, per cent, rounded up."""

    def to_dict(self) -> Dict[str, Any]:
        """All of it."""
        return asdict(self)


@dataclass(frozen=True)
class Decision:
    """An answer to a wish; true if it was granted."""

    accepted: bool
    """The flows are admitted, or could be."""
    refusal: Optional[Refusal]
    """Why not; `None` if they are."""

    def __bool__(self) -> bool:
        return self.accepted

    def to_dict(self) -> Dict[str, Any]:
        """All of it."""
        return asdict(self)


@dataclass(frozen=True)
class Remedy:
    """A change with which a refused flow is admitted; it was tried."""

    kind: str
    """`deadline`: a longer one, the shortest that will do; `priority`: another
    for it; `size`: smaller frames; `period`: a longer one; `path`: another path;
    `demote`: a lower priority for an admitted flow, which keeps its deadline."""
    value: Optional[int]
    """The deadline or period, ns; the priority; or the largest size, per cent;
    None for a way."""
    flow: Optional[str]
    """The admitted flow that is to have the lower priority."""
    paths: Optional[List[List[str]]]
    """The links of the other path, for each destination."""
    text: str
    """In words."""

    def to_dict(self) -> Dict[str, Any]:
        """All of it."""
        return asdict(self)


class Admission:
    """Which flows are promised their deadlines.

    A flow is admitted if with it every flow keeps its deadline to every
    destination, by a safe bound; what is refused leaves no trace. It begins
    with the flows of the network as admitted, whether or not they keep theirs.

    `effort` limits the work of one decision: about so many streams of other
    flows are looked at. What is not decided by then is refused, which is safe.
    """

    def __init__(self, network: Network, *, effort: Optional[int] = None) -> None:
        self._native = _native.Admission(network, effort)

    def add(self, *flows: Mapping[str, Any]) -> Decision:
        """Admits flows, all or none.

        A flow is a dictionary as in `Network.to_dict()["flows"]`. Raises
        `ValueError` if one means nothing; a refusal is no exception.
        """
        return self._decide(flows, keep=True)

    def what_if(self, *flows: Mapping[str, Any]) -> Decision:
        """What `add` would say. Nothing changes."""
        return self._decide(flows, keep=False)

    def _decide(self, flows: Any, keep: bool) -> Decision:
        why = self._native.decide(list(flows), keep)
        return Decision(why is None, None if why is None else Refusal(**why))

    def remedies(self, flow: Mapping[str, Any]) -> List[Remedy]:
        """What would help a flow that is refused, each alone.

        Empty if it is not refused, or if nothing helps that was tried. Takes
        some tens of decisions.
        """
        return [Remedy(**row) for row in self._native.remedies(flow)]

    def remove(self, id: str) -> bool:
        """Takes a flow out. False if there is none of that name."""
        return self._native.remove(id)

    def bounds(self, id: str) -> List[PathBound]:
        """The bounds of an admitted flow, one for each path; `KeyError` if
        there is none of that name."""
        rows = self._native.bounds(id)
        if rows is None:
            raise KeyError(id)
        return [bound_of(row) for row in rows]

    def analyze(self) -> Analysis:
        """The bounds of all admitted flows."""
        return analyze(self.network)

    @property
    def network(self) -> Network:
        """The network with the flows that are admitted now, in the order in
        which they were."""
        return self._native.network()

    @property
    def flow_ids(self) -> List[str]:
        """Names of the flows that are admitted, in the order in which they were."""
        return self._native.flow_ids()

    def __contains__(self, id: object) -> bool:
        return id in self.flow_ids

    def __len__(self) -> int:
        return len(self.flow_ids)

    def __repr__(self) -> str:
        return f"<Admission: {len(self)} flows>"
