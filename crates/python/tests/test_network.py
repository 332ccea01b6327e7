"""Networks: how they are read and written, and what is said of wrong ones."""

import json
import pickle

import pytest

import punctual
from punctual import Network, families


def test_a_network_is_the_same_in_every_format(networks):
    network = punctual.load(networks / "line.toml")
    assert network == Network.from_toml(network.to_toml())
    assert network == Network.from_json(network.to_json())
    assert network == Network.from_dict(network.to_dict())
    assert network == pickle.loads(pickle.dumps(network))
    assert network != families.factory_cell()


def test_examples_are_the_files(networks):
    examples = families.examples()
    assert sorted(examples) == sorted(path.stem for path in networks.glob("*.toml"))
    for name, network in examples.items():
        assert punctual.load(networks / f"{name}.toml") == network, name


def test_families_are_the_examples():
    examples = families.examples()
    for load in ("low", "medium", "high"):
        assert families.fig2(load) == examples[f"fig2-{load}"]
        assert families.fig15(load) == examples[f"fig15-{load}"]
    assert families.fig15("low", all_publish=True) == examples["fig15-abc-low"]
    assert families.factory_cell() == examples["factory-cell"]
    assert families.line() == examples["line"]


def test_random_networks_come_from_seeds():
    assert families.random(7) == families.random(7)
    assert families.random(7, "ring") != families.random(8, "ring")


def test_a_network_tells_what_it_has():
    network = families.line()
    assert network.flow_ids == ["motor", "valve", "camera"]
    assert repr(network) == "<Network: 6 nodes, 5 links, 3 flows>"
    assert network.to_dict()["flows"][0]["period_ns"] == 2_000_000


def test_files_are_known_by_ending_or_content(tmp_path):
    network = families.line()
    for name, text in [
        ("a.json", network.to_json()),
        ("a.toml", network.to_toml()),
        ("json", network.to_json()),
        ("toml", network.to_toml()),
    ]:
        (tmp_path / name).write_text(text)
        assert punctual.load(str(tmp_path / name)) == network


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        punctual.load(tmp_path / "none.toml")


def test_errors_name_the_file_the_entry_and_the_remedy(tmp_path):
    file = tmp_path / "wrong.toml"
    file.write_text('links = [{ id = "l", from = "a", to = "b" }]')
    with pytest.raises(ValueError) as error:
        punctual.load(file)
    assert str(error.value) == (
        f'{file}: links "l": from: "a" is not among the nodes; add it or correct the name'
    )


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Network.from_json("nothing"), "is not JSON"),
        (lambda: Network.from_toml("= 3"), "is not TOML"),
        (lambda: Network.from_dict({"nodes": 3}), "nodes: must be a list, not 3"),
        (lambda: Network.from_dict({"nodes": [], "x": float("nan")}), "not JSON compliant"),
        (lambda: Network.from_dict([]), "must be an object with nodes, links and flows"),
        (lambda: families.fig2("huge"), 'load "huge" is unknown; there are low, medium, high'),
        (lambda: families.random(1, "star"), 'shape "star" is unknown; there are line, tree'),
    ],
)
def test_what_is_wrong_is_a_value_error(make, words):
    with pytest.raises(ValueError) as error:
        make()
    assert words in str(error.value)


def test_what_json_does_not_have_is_a_type_error():
    with pytest.raises(TypeError):
        Network.from_dict({"nodes": {object()}})


def test_unknown_keys_are_ignored_in_json_and_refused_in_toml():
    text = json.dumps({"nodes": [{"id": "a", "colour": "blue"}]})
    assert Network.from_json(text).to_dict()["nodes"][0]["id"] == "a"
    with pytest.raises(ValueError, match="colour"):
        Network.from_toml('nodes = [{ id = "a", colour = "blue" }]')
