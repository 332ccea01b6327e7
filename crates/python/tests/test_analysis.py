"""Results of the analysis as objects."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

import punctual
from punctual import families


@pytest.fixture(scope="module")
def analysis():
    return punctual.analyze(families.line())


def test_entries_are_found_by_place_and_name(analysis):
    assert [bound.flow for bound in analysis] == ["motor", "valve", "camera"]
    assert analysis["valve"] is analysis[1] is analysis["valve", 0]
    assert analysis[-1].flow == "camera"
    assert [bound.flow for bound in analysis[:2]] == ["motor", "valve"]
    with pytest.raises(KeyError):
        analysis["lamp"]
    with pytest.raises(KeyError):
        analysis["valve", 1]
    with pytest.raises(IndexError):
        analysis[3]


def test_a_flow_with_several_paths_is_not_one_entry():
    analysis = punctual.analyze(families.factory_cell())
    with pytest.raises(KeyError, match="several paths"):
        analysis["T1"]
    assert analysis["T1", 1].path == 1


def test_a_bound_has_what_it_is_of(analysis):
    motor = analysis["motor"]
    assert motor.links == ("motor>s1", "s1>s2", "s2>receiver")
    assert (motor.prio, motor.period_ns, motor.jitter_ns) == (7, 2_000_000, 100_000)
    assert motor.schedulable and analysis.schedulable
    assert motor.slack_ns == motor.deadline_ns - motor.wcrt_ns
    assert motor.wcrt_ns <= min(motor.ha_ns, motor.ta_ns)
    # Three transmissions, a frame of best effort on two links, two switches,
    # the jitter.
    assert motor.wcrt_ns == 3 * 25_600 + 2 * 123_040 + 2 * 10_000 + 100_000


def test_records_are_what_pandas_takes(analysis):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(analysis.records())
    assert list(table["flow"]) == ["motor", "valve", "camera"]
    assert (table["slack_ns"] == table["deadline_ns"] - table["wcrt_ns"]).all()
    assert table["schedulable"].all()


def test_results_are_values(analysis):
    again = punctual.analyze(families.line())
    assert analysis == again and hash(analysis) == hash(again)
    assert pickle.loads(pickle.dumps(analysis)) == analysis
    assert analysis.to_dict() == {"schedulable": True, "results": analysis.records()}
    assert repr(analysis) == "<Analysis: 3 bounds, schedulable>"


def test_records_have_the_names_of_the_command_line(analysis):
    names = {"flow", "path", "prio", "period_ns", "deadline_ns", "wcrt_ns", "ha_ns", "ta_ns"}
    assert names | {"slack_ns", "schedulable"} <= analysis.records()[0].keys()


@pytest.mark.parametrize("name", sorted(families.examples()))
def test_an_explanation_adds_up(name):
    network = families.examples()[name]
    for bound in punctual.analyze(network)[::97]:
        explanation = punctual.explain(network, bound.flow, bound.path)
        if bound.wcrt_ns is None:
            assert explanation is None
            continue
        assert explanation.bound_ns == bound.wcrt_ns
        assert sum(part.ns for part in explanation.parts) == bound.wcrt_ns
        assert {part.link for part in explanation.parts} <= set(bound.links)


def test_an_explanation_names_what_takes_the_time():
    explanation = punctual.explain(families.fig2("low"), "m1")
    kinds = {part["kind"] for part in explanation.records()}
    assert {"release-jitter", "blocking", "same", "switching", "transmission"} <= kinds
    others = {part.flow for part in explanation.parts if part.kind == "same"}
    assert others <= {"m1", "m9", "m17", "m25", "m33", "m41"} and others
    assert all(part.text for part in explanation.parts)
    assert explanation.to_dict()["parts"] == explanation.records()


def test_an_unknown_flow_is_a_value_error():
    network = families.line()
    with pytest.raises(ValueError, match='flow "lamp" is not in the network'):
        punctual.explain(network, "lamp")
    with pytest.raises(ValueError, match='flow "motor" has no path 1; they are 0 to 0'):
        punctual.explain(network, "motor", 1)


def test_threads_get_the_same_answers():
    network = families.fig15("low")
    alone = punctual.analyze(network)
    with ThreadPoolExecutor(4) as pool:
        assert all(each == alone for each in pool.map(punctual.analyze, [network] * 8))
