"""Simulation and search as plain objects."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional

from . import _native
from ._native import Network
from ._rows import Rows


@dataclass(frozen=True)
class Seen:
    """What was seen of a flow at one of its destinations."""

    flow: str
    """The flow's name."""
    path: int
    """Index of the path, from 0."""
    response_ns: Optional[int]
    """The largest response, ns; `None` if no message came."""
    message: int
    """Which message of the flow had it, from 0."""
    messages: int
    """Messages that came, in all runs."""
    seed: int
    """The seed of the run that had it."""

    def to_dict(self) -> Dict[str, Any]:
        """All of it."""
        return asdict(self)


class Simulation(Rows[Seen]):
    """What runs showed: one entry for each flow and path, in the order of the
    network.

    `simulation["m1"]` is the entry of a flow with one path, `simulation["m1",
    2]` that of a path.
    """

    def __repr__(self) -> str:
        messages = sum(seen.messages for seen in self)
        return f"<Simulation: {len(self)} destinations, {messages} messages>"


@dataclass(frozen=True)
class Found:
    """The worst behaviour that a search found for a flow and path."""

    flow: str
    """The flow's name."""
    path: int
    """Index of the path, from 0."""
    response_ns: Optional[int]
    """The largest response, ns: something the network can do, and so a lower
    limit of the worst case."""
    runs: int
    """Behaviours that were run."""
    scenario: Dict[str, Any]
    """What brings it about; `replay` runs it again."""

    def to_dict(self) -> Dict[str, Any]:
        """All of it but the scenario."""
        everything = asdict(self)
        del everything["scenario"]
        return everything


def simulate(
    network: Network,
    *,
    runs: int = 1,
    seed: int = 0,
    duration_ns: int = 1_000_000_000,
    gaps_percent: int = 5,
    extremes_percent: int = 70,
) -> Simulation:
    """Runs random behaviours of a network in virtual time.

    A run is drawn from its seed; those of `runs` runs are `seed`, `seed` + 1 and
    so on. Messages are due from 0 to `duration_ns`. `gaps_percent`: messages
    that come later than a period after the one before. `extremes_percent`:
    jitters, delays and residual frames that are as small or as large as they
    may be.

    Every response is below every true bound, and mostly far below: chance
    seldom finds the worst. `search` looks for it.
    """
    seen = _native.simulate(network, runs, seed, duration_ns, gaps_percent, extremes_percent)
    return Simulation([Seen(**row) for row in seen])


def replay(network: Network, scenario: Mapping[str, Any]) -> Simulation:
    """Runs a scenario, such as that of a `Found`.

    Raises `ValueError` if the network may not behave so.
    """
    return Simulation([Seen(**row) for row in _native.replay(network, scenario)])


def search(
    network: Network,
    flow: str,
    path: int = 0,
    *,
    runs: int = 1000,
    seed: int = 0,
    enough_ns: Optional[int] = None,
) -> Found:
    """Looks for the largest response of a flow to the end of a path.

    It tries critical instants, then climbs: `runs` behaviours in all, or until
    a response of `enough_ns` is found. The same arguments give the same answer.
    """
    seen, scenario, made = _native.search(network, flow, path, runs, seed, enough_ns)
    return Found(flow, path, seen["response_ns"], made, scenario)


def search_all(
    network: Network, *, runs: int = 1000, seed: int = 0, threads: Optional[int] = None
) -> List[Found]:
    """`search` for every flow and path, in their order, on all cores or so many
    threads."""
    places = [
        (flow["id"], path)
        for flow in network.to_dict()["flows"]
        for path in range(len(flow["paths"]))
    ]
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        found = pool.map(lambda place: search(network, *place, runs=runs, seed=seed), places)
        return list(found)
