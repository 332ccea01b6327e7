"""What a bound is made of, as plain objects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional, Tuple

from . import _native
from ._native import Network


@dataclass(frozen=True)
class Part:
    """A part of a bound."""

    segment: int
    """Index of the segment of the path in which it counts."""
    link: str
    """The link."""
    kind: str
    """What takes the time: `higher`, `same`, `blocking`, `best-effort`,
    `switching`, `transmission`, ..."""
    flow: Optional[str]
    """The flow whose frames they are, if they are of another."""
    alike: Optional[int]
    """How many flows are just like that one, itself included."""
    text: str
    """The kind and the flow in words."""
    ns: int
    """How long, ns; negative where it takes away."""

    def to_dict(self) -> Dict[str, Any]:
        """All of it."""
        return asdict(self)


@dataclass(frozen=True)
class Explanation:
    """What the tightest bound of a flow to one destination is made of."""

    flow: str
    """The flow's name."""
    path: int
    """Index of the path, from 0."""
    bound_ns: int
    """The bound, ns."""
    deadline_ns: int
    """The deadline, ns."""
    parts: Tuple[Part, ...]
    """In the order of the path; their sum is the bound."""

    def records(self) -> List[Dict[str, Any]]:
        """One dictionary for each part: `pandas.DataFrame(explanation.records())`."""
        return [part.to_dict() for part in self.parts]

    def to_dict(self) -> Dict[str, Any]:
        """All of it."""
        return {**asdict(self), "parts": self.records()}


def explain(network: Network, flow: str, path: int = 0) -> Optional[Explanation]:
    """What the tightest bound (`wcrt_ns`) of a flow is made of: blocking,
    interference by which flow at which link, switching, transmission.

    `None` if there is no bound. Raises `ValueError` if there is no such flow or
    path.
    """
    row = _native.explain(network, flow, path)
    if row is None:
        return None
    parts = tuple(Part(**part) for part in row.pop("parts"))
    return Explanation(**row, parts=parts)
