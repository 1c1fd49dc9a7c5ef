"""Topologies: what they add, and how long transfers take over them, by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from network_helpers import Transfer, arrivals, moved, run

from devices.machine import make_machine
from devices.presets import machine_preset
from sim import Machine
from sim.base.errors import SimError
from sim.metrics import link_use

GB_LINK = {"bandwidth": "1GB/s"}


def cluster(n: int, topology: dict[str, Any], **more: Any) -> Machine:
    """Return n CPUs with many workers, so that only the network takes time, and what connects them."""
    described = {"devices": {"h": {"kind": "cpu", "cores": 64, "count": n}}, "topology": topology, **more}
    return make_machine(described)


def ends_of(machine: Machine) -> Counter[str]:
    return Counter(link.source for link in machine.links)


# -- shapes ------------------------------------------------------------------------------------------


def test_mesh_ring_switch() -> None:
    mesh, ring, switch = (cluster(4, {"kind": kind}) for kind in ("mesh", "ring", "switch"))
    assert len(mesh.links) == 4 * 3
    assert [link.name for link in ring.links[::2]] == ["h0->h1", "h1->h2", "h2->h3", "h3->h0"]
    assert [device.name for device in switch.devices] == ["h0", "h1", "h2", "h3", "switch"]
    assert ends_of(switch)["switch"] == 4
    assert {link.sharing for link in (*mesh.links, *ring.links, *switch.links)} == {"shared"}


def test_a_ring_of_two_is_one_link() -> None:
    assert [link.name for link in cluster(2, {"kind": "ring"}).links] == ["h0->h1", "h1->h0"]


@pytest.mark.parametrize(
    ("shape", "links", "farthest"),
    [([8], 8, 4), ([4, 4], 32, 4), ([4, 2], 8 + 4, 3), ([3, 3, 3], 81, 3), ([4, 4, 4], 192, 6)],
)
def test_torus(shape: list[int], links: int, farthest: int) -> None:
    n = 1
    for size in shape:
        n *= size
    machine = cluster(n, {"kind": "torus", "shape": shape})
    assert len(machine.links) == 2 * links
    assert max(len(machine.route(0, k)) for k in range(n)) == farthest == sum(size // 2 for size in shape)


def test_a_torus_without_its_wrap_is_a_grid() -> None:
    machine = cluster(12, {"kind": "torus", "shape": [4, 3], "wrap": False})
    assert len(machine.links) == 2 * (3 * 3 + 4 * 2)
    assert max(len(machine.route(0, k)) for k in range(12)) == 3 + 2


@pytest.mark.parametrize(("k", "over", "hosts"), [(4, 1, 16), (4, 3, 48), (6, 1, 54), (8, 2, 256)])
def test_fat_tree(k: int, over: float, hosts: int) -> None:
    # Al-Fares et al., section 3: k pods, (k/2)^2 core switches, k^3/4 hosts, each switch with k ports.
    machine = cluster(hosts, {"kind": "fat-tree", "k": k, "oversubscription": over})
    switches = Counter(device.name.rstrip("0123456789.") for device in machine.devices)
    assert switches == {"h": hosts, "edge": k * k // 2, "agg": k * k // 2, "core": k * k // 4}
    ports = ends_of(machine)
    for name, n in ports.items():
        kind = name.rstrip("0123456789.")
        assert n == {"h": 1, "edge": k // 2 + over * k // 2, "agg": k, "core": k}[kind]
    at_edge = over * k // 2
    hops = {b: len(machine.route(0, b)) for b in (1, at_edge, hosts - 1)}
    assert hops == {1: 2, at_edge: 4, hosts - 1: 6}


def test_a_fat_tree_chooses_its_ports() -> None:
    assert sum(device.name.startswith("core") for device in cluster(17, {"kind": "fat-tree"}).devices) == 9
    small = cluster(2, {"kind": "fat-tree"})
    assert [device.name for device in small.devices] == [
        "h0",
        "h1",
        "edge0.0",
        "agg0.0",
        "edge1.0",
        "agg1.0",
        "core0",
    ]


def test_rails() -> None:
    spec = {
        "devices": {"gpu": {"kind": "gpu", "count": 4}},
        "nodes": 6,
        "topology": {"kind": "rail-optimised", "nodes_per_leaf": 3, "oversubscription": 1.5, "link": GB_LINK},
    }
    machine = make_machine(spec)
    names = [device.name for device in machine.devices]
    assert names[:5] == ["node0/gpu0", "node0/gpu1", "node0/gpu2", "node0/gpu3", "node1/gpu0"]
    assert [n for n in names if n.startswith("spine")] == ["spine0", "spine1"]
    assert [n for n in names if n.startswith("leaf")] == [f"leaf{g}.{r}" for g in range(2) for r in range(4)]
    below = {link.source for link in machine.links if link.destination == "leaf1.2"}
    assert below == {"node3/gpu2", "node4/gpu2", "node5/gpu2", "spine0", "spine1"}
    assert {link.bandwidth_bytes_per_s for link in machine.links} == {10**9}  # 3 below, 2 above: 1.5 to 1


def test_uplinks_carry_what_oversubscription_leaves() -> None:
    topology = {
        "kind": "rail-optimised",
        "nodes_per_leaf": 4,
        "spines": 1,
        "oversubscription": 2,
        "link": GB_LINK,
    }
    machine = cluster(8, topology)
    up = next(link for link in machine.links if link.name == "leaf0.0->spine0")
    assert up.bandwidth_bytes_per_s == 2 * 10**9


def test_a_host_of_two_sockets_with_pcie_switches() -> None:
    spec = {
        "devices": {"cpu": {"kind": "cpu", "cores": 2, "count": 2}, "gpu": {"kind": "gpu", "count": 8}},
        "topology": {
            "kind": "pcie",
            "per_switch": 2,
            "link": {"bandwidth": "32GB/s"},
            "socket_link": GB_LINK,
        },
    }
    machine = make_machine(spec)

    def way(a: str, b: str) -> list[str]:
        route = machine.route(machine.device_index(a), machine.device_index(b))
        return [machine.links[k].destination for k in route]

    assert way("gpu0", "gpu1") == ["pcie0.0", "gpu1"]
    assert way("gpu0", "gpu3") == ["pcie0.0", "cpu0", "pcie0.1", "gpu3"]
    assert way("cpu0", "gpu7") == ["cpu1", "pcie1.1", "gpu7"]


# -- times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("over", "expected"), [(1, 1000), (2, 2000), (3, 3000)])
def test_a_permutation_on_a_fat_tree(over: int, expected: int) -> None:
    # Everybody sends 1000 B at 1 B/ns to the device half a machine away. Given routes spread the flows of an
    # edge switch over all ways up; then a full fat tree carries them at full speed (Al-Fares et al., section
    # 2.2: "rearrangeably non-blocking"), and one with so many times more devices so many times slower.
    k = 4
    n = over * k**3 // 4
    each = over * k // 2  # devices of an edge switch
    routes = []
    for a in range(n):
        b = (a + n // 2) % n
        (edge, place), (there, _) = divmod(a, each), divmod(b, each)
        up, core = place % 2, edge % 2
        via = [
            f"edge{edge // 2}.{edge % 2}",
            f"agg{edge // 2}.{up}",
            f"core{up * 2 + core}",
            f"agg{there // 2}.{up}",
            f"edge{there // 2}.{there % 2}",
        ]
        routes.append({"from": f"h{a}", "to": f"h{b}", "via": via})
    topology = {"kind": "fat-tree", "k": k, "oversubscription": over, "link": GB_LINK}
    machine = cluster(n, topology, routes=routes)
    transfers = [Transfer(0, f"h{a}", f"h{(a + n // 2) % n}", 1000) for a in range(n)]
    assert arrivals(machine, transfers) == [expected] * n


def test_two_flows_on_one_oversubscribed_uplink() -> None:
    # 2 : 1: each leaf has 2 GB/s below and 1 GB/s above, which two flows share and one has for itself.
    topology = {"kind": "rail-optimised", "nodes_per_leaf": 2, "oversubscription": 2, "link": GB_LINK}
    machine = cluster(4, topology)
    one, other = Transfer(0, "h0", "h2", 1000), Transfer(0, "h1", "h3", 1000)
    assert arrivals(machine, [one]) == [1000]
    assert arrivals(machine, [one, other]) == [2000, 2000]
    assert arrivals(machine, [one, Transfer(0, "h1", "h0", 1000)]) == [1000, 1000]  # stays below
    use = link_use(run(machine, [one, other]))["leaf0.0->spine0"]
    assert (use.nbytes, use.transfers, use.busy_ns, use.contended_ns) == (2000, 2, 2000, 2000)
    assert (use.utilisation, use.bandwidth_utilisation) == (1.0, 1.0)


def test_neighbours_of_a_torus_exchange_at_full_speed() -> None:
    # Every link of a 4 x 4 torus carries one message: 1000 B at 1 B/ns after 50 ns.
    machine = cluster(
        16, {"kind": "torus", "shape": [4, 4], "link": {"bandwidth": "1GB/s", "latency": "50ns"}}
    )
    transfers = [Transfer(0, link.source, link.destination, 1000) for link in machine.links]
    assert arrivals(machine, transfers) == [1050] * 64
    # To the far corner there are 4 hops of 50 ns.
    assert arrivals(machine, [Transfer(0, "h0", "h10", 1000)]) == [1200]


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        ("shared", [(0, 2010), (0, 2010)]),
        ("serial", [(0, 1010), (1010, 2020)]),
        ("fifo", [(0, 2010), (0, 3010)]),  # the second waits for the first at the switch
        ({"name": "fifo", "chunk": "100B"}, [(0, 2010), (0, 2110)]),  # ... and takes turns with it
    ],
)
def test_how_a_network_shares(sharing: object, expected: list[tuple[int, int]]) -> None:
    machine = cluster(
        3, {"kind": "switch", "link": {"bandwidth": "1GB/s", "latency": "5ns"}}, sharing=sharing
    )
    assert moved(machine, [Transfer(0, "h0", "h2", 1000), Transfer(0, "h1", "h2", 1000)]) == expected


def test_an_instant_network_has_latency_alone() -> None:
    machine = cluster(
        3, {"kind": "switch", "link": {"bandwidth": "1GB/s", "latency": "5ns"}}, sharing="instant"
    )
    assert arrivals(machine, [Transfer(0, "h0", "h2", 10**9)] * 3) == [10, 10, 10]


# -- nodes -------------------------------------------------------------------------------------------


def test_nodes_of_a_preset() -> None:
    machine = make_machine(
        {
            "preset": "dgx-h100",
            "nodes": 2,
            "devices": {"gpu": {"streams": 3}, "node1/gpu7": {"streams": 4}},
            "links": [
                {"name": "nvlink", "latency": "2us"},
                {"from": "node0/cpu0", "to": "node1/cpu0", "name": "x"},
            ],
            "hosts": {"process": {"devices": ["gpu*"]}},
        }
    )
    streams = {device.name: device.streams for device in machine.devices if device.kind == "gpu"}
    assert streams == {f"node{n}/gpu{g}": 4 if (n, g) == (1, 7) else 3 for n in range(2) for g in range(8)}
    links = {link.name: link for link in machine.links}
    assert links["nvlink node1/gpu3->node1/nvswitch"].latency_ns == 2000
    assert links["x node0/cpu0->node1/cpu0"].source == "node0/cpu0"
    assert not any(a.source[:5] != a.destination[:5] and "nvswitch" in a.destination for a in machine.links)
    assert links["node1/gpu3->leaf3"].bandwidth_bytes_per_s == 50 * 10**9
    assert links["node1/gpu3->leaf3"].overhead_ns == 1000
    assert [host.name for host in machine.hosts] == ["node0/process", "node1/process"]
    assert machine.hosts[1].serves == tuple(f"node1/gpu{g}" for g in range(8))


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-b200", "dgx-h100", "dgx-h200"])
def test_messages_of_a_rail_stay_at_its_leaf(name: str) -> None:
    machine = make_machine({"preset": name, "nodes": 4})
    route = machine.route(machine.device_index("node0/gpu5"), machine.device_index("node3/gpu5"))
    assert [machine.links[k].destination for k in route] == ["leaf5", "node3/gpu5"]
    # One message overhead, and the latency of both links.
    nic = machine_preset(name)["topology"]["link"]
    assert nic["transport"] == "rdma"
    assert machine.latency_ns(route) == 1000 + 2 * 65


def test_one_node_has_no_cluster_network() -> None:
    machine = make_machine({"preset": "dgx-h100", "nodes": 1})
    assert len(machine.devices) == 11
    assert not any("leaf" in device.name for device in machine.devices)


def test_another_topology_keeps_the_adapters_of_the_preset() -> None:
    machine = make_machine({"preset": "dgx-a100", "nodes": 2, "topology": {"kind": "switch"}})
    link = next(link for link in machine.links if link.name == "node1/gpu0->switch")
    assert link.bandwidth_bytes_per_s == 25 * 10**9


def test_1024_devices_are_built_and_routed() -> None:
    machine = make_machine({"preset": "dgx-h100", "nodes": 128, "routing": "ecmp"})
    gpus = [i for i, device in enumerate(machine.devices) if device.kind == "gpu"]
    assert len(gpus) == 1024
    for a, b in zip(gpus, gpus[1:] + gpus[:1], strict=True):
        assert 2 <= len(machine.route(a, b)) <= 4


# -- what is wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ({}, "topology: a topology needs a kind; known: fat-tree, mesh, pcie"),
        ({"kind": "fat_tree"}, "topology.kind: unknown topology 'fat_tree'; did you mean 'fat-tree'"),
        ({"kind": "torus"}, "topology: the topology 'torus' needs the option 'shape'"),
        (
            {"kind": "torus", "shape": [2, 3]},
            r"topology.shape: 2 x 3 are 6 places, and it connects 8 devices",
        ),
        ({"kind": "torus", "shape": [0, 3]}, r"topology.shape\[0\]"),
        ({"kind": "ring", "shap": [8]}, "topology.shap: the topology 'ring' has no option 'shap'"),
        (
            {"kind": "fat-tree", "k": 3},
            "topology.k: the switches of a fat tree have an even number of ports, not 3",
        ),
        (
            {"kind": "fat-tree", "k": 2},
            "topology.k: a fat tree of switches with 2 ports has room for 2 devices, not 8",
        ),
        ({"kind": "fat-tree", "k": 4, "oversubscription": 1.3}, "1.3 times 2 devices at a switch"),
        ({"kind": "fat-tree", "oversubscription": 0}, "topology.oversubscription"),
        (
            {"kind": "ring", "link": {"bandwith": "1GB/s"}},
            "topology.link.bandwith: .*did you mean 'bandwidth'|topology.link: unknown key 'bandwith'",
        ),
        ({"kind": "ring", "link": {"from": "h0"}}, "topology.link.from: the topology knows what it connects"),
        ({"kind": "ring", "link": "fast"}, "topology.link: 'fast' is not a mapping"),
        ({"kind": "ring", "ends": "gpu*"}, r"topology.ends: .*'gpu\*'"),
        ({"kind": "ring", "ends": ["h0"]}, "connects two devices at least; its ends are h0"),
        ({"kind": "switch", "name": "h3"}, "its switch 'h3' has the name of a device"),
        (
            {"kind": "rail-optimised", "oversubscription": 2, "uplink": GB_LINK},
            "oversubscription: uplink says",
        ),
    ],
)
def test_a_wrong_topology_is_told(topology: dict[str, Any], says: str) -> None:
    with pytest.raises(SimError, match=says):
        cluster(8, topology)


def test_single_links_of_a_preset_are_changed_by_name() -> None:
    def rates(*links: dict[str, Any], **more: Any) -> dict[str, tuple[int | None, int]]:
        spec = {"preset": "dgx-h100", "nodes": 2, "links": list(links), **more}
        return {each.name: (each.bandwidth_bytes_per_s, each.latency_ns) for each in make_machine(spec).links}

    usual = rates()
    leaf, nvlink = "node0/gpu0->leaf0", "nvlink node0/gpu0->node0/nvswitch"
    changed = {leaf: (10**9, usual[leaf][1]), nvlink: (usual[nvlink][0], 7)}
    found = rates({"name": leaf, "bandwidth": "8Gb/s"}, {"name": nvlink, "latency": "7ns"})
    assert found == usual | changed
    assert list(found) == list(usual)
    pattern = rates({"name": "leaf0->*", "bandwidth": "1GB/s", "latency": 0})
    assert [name for name in usual if pattern[name] != usual[name]] == [
        "leaf0->node0/gpu0", "leaf0->node1/gpu0", "leaf0->spine0", "leaf0->spine1"
    ]  # fmt: skip
    # All of an entry, as ever; then one of these.
    both = rates({"name": "nvlink", "bandwidth": "9GB/s"}, {"name": nvlink, "bandwidth": "1GB/s"})
    assert sum(both[name][0] != usual[name][0] for name in usual) == 32
    assert both[nvlink][0] == 10**9


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (
            {"name": "nvlnk", "bandwidth": "1GB/s"},
            r"links\[0\].name: unknown link 'nvlnk'; did you mean 'nvlink'",
        ),
        ({"name": "node0/gpu8->leaf0", "bandwidth": "1GB/s"}, "did you mean 'node0/gpu0->leaf0'"),
        ({"name": "leaf8->spine0", "bandwidth": "1GB/s"}, "Known: leaf0->spine0 to leaf7->spine0"),
        (
            {"name": "leaf0->spine0", "sharing": "serial"},
            r"links\[0\].sharing: of single links bandwidth and",
        ),
        (
            {"name": "leaf0->spine0"},
            r"links\[0\]: says nothing of 'leaf0->spine0'; give bandwidth or latency",
        ),
        ({"name": ["leaf0"], "bandwidth": "1GB/s"}, r"links\[0\].name: "),
        (
            {"from": "node0/gpu0", "to": "leaf0"},
            "two links are called 'node0/gpu0->leaf0'; to change that of the topology",
        ),
    ],
)
def test_a_wrong_change_of_a_link_is_told(link: dict[str, Any], says: str) -> None:
    with pytest.raises(SimError, match=says):
        make_machine({"preset": "dgx-h100", "nodes": 2, "links": [link]})


def test_uneven_rails_and_unknown_devices_of_nodes() -> None:
    with pytest.raises(
        SimError, match="as many devices in each node: 2 beside node0/gpu0, 1 beside node1/gpu0"
    ):
        make_machine(
            {
                "devices": {"gpu": {"kind": "gpu", "count": 2}},
                "nodes": 2,
                "topology": {"kind": "rail-optimised", "ends": ["node0/gpu*", "node1/gpu0"]},
            }
        )
    with pytest.raises(SimError, match=r"unknown device 'node2/gpu0'\. Known: node0/gpu0 to node1/gpu0"):
        make_machine({"preset": "dgx-h100", "nodes": 2, "devices": {"node2/gpu0": {"streams": 2}}})
    with pytest.raises(SimError, match="a PCIe host needs a CPU among its ends"):
        make_machine({"devices": {"gpu": {"kind": "gpu", "count": 2}}, "topology": {"kind": "pcie"}})
