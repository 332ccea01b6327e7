"""Simulation and search against the bounds."""

import pytest

import punctual
from punctual import families


@pytest.mark.parametrize("seed", range(40))
def test_no_response_is_above_a_bound(seed):
    network = families.random(seed)
    bounds = punctual.analyze(network)
    simulation = punctual.simulate(network, runs=3, seed=seed, duration_ns=50_000_000)
    assert [(seen.flow, seen.path) for seen in simulation] == [
        (bound.flow, bound.path) for bound in bounds
    ]
    for seen, bound in zip(simulation, bounds):
        if bound.wcrt_ns is not None and seen.response_ns is not None:
            assert seen.response_ns <= bound.wcrt_ns <= min(
                ns for ns in (bound.ha_ns, bound.ta_ns) if ns is not None
            )


def test_runs_come_from_seeds():
    network = families.line()
    three = punctual.simulate(network, runs=3, seed=5)
    alone = [punctual.simulate(network, seed=5 + run) for run in range(3)]
    for seen in three:
        best = max((each[seen.flow] for each in alone), key=lambda each: each.response_ns)
        assert seen.response_ns == best.response_ns
        assert seen.messages == sum(each[seen.flow].messages for each in alone)
        again = punctual.simulate(network, seed=seen.seed)[seen.flow]
        assert again.response_ns == seen.response_ns


def test_nothing_is_seen_of_what_is_not_sent():
    seen = punctual.simulate(families.line(), duration_ns=0)
    assert [row["response_ns"] for row in seen.records()] == [None] * 3
    assert repr(seen) == "<Simulation: 3 destinations, 0 messages>"


def test_a_search_finds_the_worst_of_a_small_network():
    network = families.line()
    bound = punctual.analyze(network)["motor"].wcrt_ns
    found = punctual.search(network, "motor", runs=300)
    # Best effort costs a nanosecond on each of two links.
    assert bound - 2 <= found.response_ns <= bound
    assert found.runs <= 300
    assert "scenario" not in found.to_dict()


def test_a_scenario_is_replayed():
    network = families.factory_cell()
    found = punctual.search(network, "T1", 1, runs=100, seed=3)
    assert punctual.replay(network, found.scenario)["T1", 1].response_ns == found.response_ns


def test_enough_is_enough():
    network = families.line()
    found = punctual.search(network, "motor", runs=10_000, enough_ns=1)
    assert found.response_ns >= 1 and found.runs < 10_000


def test_search_all_is_search_of_each():
    network = families.factory_cell()
    found = punctual.search_all(network, runs=20, seed=1, threads=2)
    assert len(found) == len(punctual.analyze(network))
    for each in found[::5]:
        assert each == punctual.search(network, each.flow, each.path, runs=20, seed=1)


def test_what_is_wrong_is_a_value_error():
    network = families.line()
    with pytest.raises(ValueError, match='flow "lamp" is not in the network'):
        punctual.search(network, "lamp")
    with pytest.raises(ValueError, match="gaps_percent 101 is above 100"):
        punctual.simulate(network, gaps_percent=101)
    with pytest.raises(ValueError, match="duration_ns"):
        punctual.simulate(network, duration_ns=10**18)
    with pytest.raises(ValueError, match="scenario is for 0 flows"):
        punctual.replay(network, {"flows": [], "links": []})
    scenario = punctual.search(network, "motor", runs=5).scenario
    scenario["flows"][0]["messages"][0]["late_ns"] = 10**9
    with pytest.raises(ValueError, match="above the jitter"):
        punctual.replay(network, scenario)
