"""Admission: decisions, reasons, and that refusals leave no trace."""

import pytest

import punctual
from punctual import Admission, families


def lamp(**changes):
    path = ["valve>s1", "s1>s2", "s2>receiver"]
    flow = {"id": "lamp", "prio": 4, "period": "5ms", "wire_bytes": 320, "paths": [path]}
    return {**flow, **changes}


@pytest.fixture
def admission():
    return Admission(families.line())


def test_what_is_admitted_keeps_its_deadline(admission):
    decision = admission.add(lamp())
    assert decision and decision.accepted and decision.refusal is None
    assert admission.flow_ids == ["motor", "valve", "camera", "lamp"]
    assert "lamp" in admission and len(admission) == 4
    (bound,) = admission.bounds("lamp")
    assert bound.schedulable
    assert bound == admission.analyze()["lamp"] == punctual.analyze(admission.network)["lamp"]


def test_a_refusal_says_why_and_leaves_no_trace(admission):
    before = admission.network
    decision = admission.add(lamp(id="spare"), lamp(deadline="200us"))
    assert not decision
    refusal = decision.refusal
    assert (refusal.kind, refusal.flow, refusal.new, refusal.path) == ("late", "lamp", True, 0)
    assert refusal.deadline_ns == 200_000 < refusal.bound_ns
    assert "beyond its deadline of 200us" in refusal.message
    assert decision.to_dict()["refusal"] == refusal.to_dict()
    assert admission.network == before


def test_an_overloaded_link_is_named(admission):
    refusal = admission.add(lamp(period="25us", deadline="1s")).refusal
    assert refusal.kind == "overload" and refusal.link in lamp()["paths"][0]
    assert refusal.load_percent > 100


def test_an_admitted_flow_may_stand_against_a_new_one(admission):
    greedy = lamp(prio=9, wire_bytes=1538, frames=15, period="20ms")
    refusal = admission.add(greedy).refusal
    assert not refusal.new and refusal.flow == "motor"
    assert "admitted flow" in refusal.message


def test_a_name_is_given_once(admission):
    assert admission.add(lamp())
    assert admission.add(lamp()).refusal.kind == "taken"
    assert admission.add(lamp(id="a"), lamp(id="a")).refusal.kind == "taken"
    assert len(admission) == 4


def test_what_if_changes_nothing(admission):
    before = admission.network
    assert admission.what_if(lamp(), lamp(id="second"))
    assert not admission.what_if(lamp(deadline="1us"))
    assert admission.network == before
    assert admission.add(lamp())


def test_what_is_removed_leaves_no_trace(admission):
    before = admission.network
    admission.add(lamp())
    assert admission.remove("lamp")
    assert not admission.remove("lamp")
    assert admission.network == before
    with pytest.raises(KeyError):
        admission.bounds("lamp")


def test_remedies_help(admission):
    flow = lamp(deadline="200us")
    remedies = admission.remedies(flow)
    longer = next(remedy for remedy in remedies if remedy.kind == "deadline")
    del flow["deadline"]
    assert not admission.what_if({**flow, "deadline_ns": longer.value - 1})
    assert admission.what_if({**flow, "deadline_ns": longer.value})
    assert longer.text.startswith("a deadline of ")
    assert admission.remedies(lamp()) == []


def test_a_flow_that_means_nothing_is_a_value_error(admission):
    with pytest.raises(ValueError, match='"nowhere" is not among the links'):
        admission.add(lamp(paths=[["nowhere"]]))
    with pytest.raises(ValueError, match="flow"):
        admission.add(3)
    assert len(admission) == 3


def test_without_effort_what_needs_a_closer_look_is_refused():
    network = families.fig2("high")
    path = network.to_dict()["flows"][0]["paths"][0]
    flow = {"id": "x", "prio": 1, "period": "20ms", "wire_bytes": 1538, "paths": [path]}
    (bound,) = added(network, flow).bounds("x")
    # So that only the tightest bound will do.
    flow["deadline_ns"] = bound.wcrt_ns
    assert Admission(network).what_if(flow)
    assert not Admission(network, effort=0).what_if(flow)


def added(network, flow):
    admission = Admission(network)
    assert admission.add(flow)
    return admission
