"""Networks of the literature, and random ones.

What the papers leave open is an assumption; `examples/networks/README.md` says
which were made.
"""

from __future__ import annotations

from typing import Dict, Optional

from . import _native
from ._native import Network


def fig2(load: str) -> Network:
    """Fig. 2 of the RT-MQTT paper: publishers at six switches, one broker.

    `load` is `low`, `medium` or `high`: 12, 24 or 42 flows, `m1` to `m47`, of
    seven priorities. Source: Shahri, Pedreiras, Almeida, "End-to-End Response
    Time Analysis for RT-MQTT".
    """
    return _native.fig2(load)


def fig15(load: str, *, all_publish: bool = False) -> Network:
    """Fig. 15 of the MRT-MQTT paper: three edge networks, two topics each, that
    go to the brokers of all three by multicast.

    `load` is `low`, `medium` or `high`: 20, 40 or 60 publishers for each topic.
    `all_publish`: all edge networks publish, not only A; medium and high are
    then more than the links can carry. Source: Shahri, Pedreiras, Almeida, "A
    Scalable Real-Time SDN-Based MQTT Framework for Industrial Applications".
    """
    return _native.fig15(load, all_publish)


def factory_cell() -> Network:
    """The factory cell of PrioMQTT: four modules ask a controller, which
    answers, through one broker that sends a copy to each subscriber.

    Source: Patti, Leonardi, Testa, Lo Bello, "PrioMQTT", section 5.
    """
    return _native.factory_cell()


def line() -> Network:
    """Three publishers along two switches: small enough to follow by hand."""
    return _native.line()


def examples() -> Dict[str, Network]:
    """All of them, by the name of their file in `examples/networks`."""
    return dict(_native.examples())


def random(seed: int, shape: Optional[str] = None) -> Network:
    """The random network of a seed.

    `shape` is `line`, `tree`, `ring`, `mesh` or `broker`; any of them without.
    """
    return _native.random(seed, shape)
