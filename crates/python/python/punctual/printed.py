"""The formulas of the RT-MQTT paper as printed.

**These are no bounds.** Real responses exceed them, those of the trajectory
formula by far. They are here to reproduce figures and to show where the
formulas are unsafe; use `punctual.analyze` for bounds.

Source: Shahri, Pedreiras, Almeida, "End-to-End Response Time Analysis for
RT-MQTT: Trajectory Approach versus Holistic Approach". Release jitter is added,
which favours the formulas.
"""

from __future__ import annotations

from typing import Dict, Optional, Tuple

from . import _native
from ._analysis import by_path
from ._native import Network


def holistic(network: Network) -> Dict[Tuple[str, int], Optional[int]]:
    """Equations (2) to (4) and Algorithm 1, ns, by flow and path. No bound.

    `None` where the iteration does not end.
    """
    return by_path(network, _native.printed_holistic(network))


def trajectory(
    network: Network, *, repaired: bool = False
) -> Dict[Tuple[str, int], Optional[int]]:
    """Equations (5) to (8) and Algorithm 2, ns, by flow and path. No bound.

    `repaired`: with (1+floor(x))^+ as the largest of 0 and 1+floor(x), which is
    meant, instead of the largest of 0 and floor(x), which is printed.
    """
    return by_path(network, _native.printed_trajectory(network, repaired))
