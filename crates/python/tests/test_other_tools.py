"""The holistic bound against other implementations of the same analysis.

Compositional performance analysis: each port is a resource with static
priorities that is not preempted, each switch a delay, and jitter is handed on
from one to the next. On Fig. 2 of the RT-MQTT paper this is the holistic bound
to the nanosecond: flows of one priority count as more urgent there, which makes
no difference while windows are shorter than periods.
"""

import pytest

import punctual
from punctual import families

LOADS = ["low", "medium", "high"]


class Port:
    """What crosses a link: (flow, jitter there), and what undeclared traffic
    takes."""

    def __init__(self, link):
        self.blocking = cost(link.get("be_bytes", 0), link)
        self.link = link
        self.flows = []

    def response(self, flow, jitter):
        """Busy windows of one frame, two frames, ... until one ends before the
        next frame (Tindell & Clark 1994; Davis et al. 2007)."""
        own = cost(flow["wire_bytes"], self.link)
        others = [each for each in self.flows if each[0] is not flow]
        higher = [each for each in others if each[0]["prio"] >= flow["prio"]]
        lower = [cost(o["wire_bytes"], self.link) for o, _ in others if o["prio"] < flow["prio"]]
        blocking = max([self.blocking, *lower])
        worst, q = 0, 1
        while True:
            window = blocking + (q - 1) * own
            while True:
                wanted = blocking + (q - 1) * own
                for other, other_jitter in higher:
                    frames = (window + other_jitter) // other["period_ns"] + 1
                    wanted += frames * cost(other["wire_bytes"], self.link)
                if wanted == window:
                    break
                window = wanted
            arrival = max(0, (q - 1) * flow["period_ns"] - jitter)
            worst = max(worst, window + own - arrival)
            if q * flow["period_ns"] - jitter >= window + own:
                return worst
            q += 1


def cost(wire_bytes, link):
    """Time of a frame on a link, ns, rounded up."""
    return -(-8 * wire_bytes * 1_000_000_000 // link["rate_bps"])


def by_hand(network):
    """The response of each flow, ns. Routes must not make a cycle."""
    network = network.to_dict()
    nodes = {node["id"]: node for node in network["nodes"]}
    ports = {link["id"]: Port(link) for link in network["links"]}
    flows = {flow["id"]: (flow, flow["paths"][0]) for flow in network["flows"]}
    # Ports, each after those from which flows come to it.
    before = {link: set() for link in ports}
    for _, path in flows.values():
        for first, second in zip(path, path[1:]):
            before[second].add(first)
    order = []
    while len(order) < len(before):
        order += [port for port in before if port not in order and before[port] <= set(order)]
    jitter = {id: flow["jitter_ns"] for id, (flow, _) in flows.items()}
    total = dict(jitter)
    for link in order:
        port = ports[link]
        node = nodes[port.link["from"]]
        here = [(id, flow, path.index(link)) for id, (flow, path) in flows.items() if link in path]
        for id, flow, place in here:
            if place > 0:
                most = node.get("sd_max_ns", node["sd_min_ns"])
                total[id] += most
                jitter[id] += most - node["sd_min_ns"]
            port.flows.append((flow, jitter[id]))
        for id, flow, _ in here:
            response = port.response(flow, jitter[id])
            total[id] += response
            jitter[id] += response - cost(flow["wire_bytes"], port.link)
    return total


@pytest.mark.parametrize("load", LOADS)
def test_the_holistic_bound_is_that_of_busy_windows(load):
    network = families.fig2(load)
    expected = by_hand(network)
    assert {bound.flow: bound.ha_ns for bound in punctual.analyze(network)} == expected


@pytest.mark.parametrize("load", LOADS)
def test_the_holistic_bound_is_that_of_pycpa(load):
    pycpa = pytest.importorskip(
        "pycpa.analysis",
        reason="pyCPA is not installed; it is not on PyPI, install it from its repository",
    )
    from pycpa import model, schedulers

    network = families.fig2(load)
    document = network.to_dict()
    nodes = {node["id"]: node for node in document["nodes"]}
    system = model.System()

    def resource(name):
        scheduler = schedulers.SPNPScheduler(priority_cmp=schedulers.prio_high_wins_equal_fifo)
        return system.bind_resource(model.Resource(name, scheduler))

    links = {link["id"]: link for link in document["links"]}
    resources = {id: resource(id) for id in links}
    for id, link in links.items():
        if link.get("be_bytes"):
            length = cost(link["be_bytes"], link)
            task = model.Task(f"be-{id}", wcet=length, bcet=0, scheduling_parameter=-1)
            # It counts once, however often it comes.
            resources[id].bind_task(task).in_event_model = model.PJdEventModel(P=10**12, J=0)
    tasks = {}
    for flow in document["flows"]:
        chain = []
        for place, link in enumerate(flow["paths"][0]):
            if place > 0:
                node = nodes[links[link]["from"]]
                name = f"{flow['id']}-{node['id']}"
                least = node["sd_min_ns"]
                task = model.Task(
                    name,
                    wcet=node.get("sd_max_ns", least),
                    bcet=least,
                    scheduling_parameter=0,
                )
                chain.append(resource(name).bind_task(task))
            length = cost(flow["wire_bytes"], links[link])
            task = model.Task(
                f"{flow['id']}-{link}",
                wcet=length,
                bcet=length,
                scheduling_parameter=flow["prio"],
            )
            chain.append(resources[link].bind_task(task))
        for first, second in zip(chain, chain[1:]):
            first.link_dependent_task(second)
        jitter = flow["jitter_ns"]
        chain[0].in_event_model = model.PJdEventModel(P=flow["period_ns"], J=jitter)
        tasks[flow["id"]] = (jitter, chain)
    results = pycpa.analyze_system(system)
    for bound in punctual.analyze(network):
        jitter, chain = tasks[bound.flow]
        assert bound.ha_ns == jitter + sum(results[task].wcrt for task in chain), bound.flow
