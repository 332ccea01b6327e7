"""Response-time bounds, admission control and simulation of real-time networks.

A network has nodes, directed links with strict priorities, and flows of
messages; `analyze` bounds how long a message of each flow can take, `Admission`
says which flows can be promised their deadlines, `simulate` and `search` show
what the network does.

All times are whole nanoseconds (`_ns`). A response is the time from the nominal
release of a message to its last bit at a destination, release jitter included.
What is wrong with an argument is a `ValueError` that names the entry, the value
and the remedy. Analysis and simulation run without the interpreter's lock, so
threads use all cores.
"""

from __future__ import annotations

from . import families, printed
from ._admission import Admission, Decision, Refusal, Remedy
from ._analysis import Analysis, PathBound, analyze, tfa
from ._explain import Explanation, Part, explain
from ._native import Network, __version__
from ._network import load
from ._simulation import Found, Seen, Simulation, replay, search, search_all, simulate

__all__ = [
    "Admission",
    "Analysis",
    "Decision",
    "Explanation",
    "Found",
    "Network",
    "Part",
    "PathBound",
    "Refusal",
    "Remedy",
    "Seen",
    "Simulation",
    "__version__",
    "analyze",
    "explain",
    "families",
    "load",
    "printed",
    "replay",
    "search",
    "search_all",
    "simulate",
    "tfa",
]
