"""NCCL's choice beside a second transcription of its tuner, and beside cases worked by hand."""

from __future__ import annotations

from math import inf

import pytest

from devices.collectives.nccl_tuner import GENERATIONS, NcclTuner, search
from sim.base.errors import InputError

TREE, RING, DIRECT, CHAIN, NVLS, NVLS_TREE, PAT = range(7)
LL, LL128, SIMPLE = range(3)
NAMES = ("tree", "ring", "collnet-direct", "collnet-chain", "nvls", "nvls-tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
KINDS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")

# Worked by hand from search.cc: ring, tree and NVLS (channels, GB/s in the node, GB/s between nodes), whether
# the tree is a plain chain, and the channels of the communicator.
GRAPHS = {
    # 12 NVLinks of 20: 6 rings of 40 fill 240, twice as many of 20. Two GPUs: half of the trees go backwards.
    ("a100", 2, False): ((12, 20, 20), (12, 40, 40), (0, 0, 0), False, 24),
    ("a100", 4, False): ((12, 20, 20), (12, 20, 20), (0, 0, 0), False, 24),
    ("a100", 8, False): ((12, 20, 20), (12, 20, 20), (0, 0, 0), False, 24),
    # A card of 24 for each GPU, too slow to be doubled; the tree gains speed in the node: 8 x 7/8 x 30 < 240.
    ("a100", 1, True): ((1, 24, 24), (1, 48, 24), (0, 0, 0), True, 2),
    ("a100", 2, True): ((2, 24, 24), (2, 48, 24), (0, 0, 0), False, 4),
    ("a100", 4, True): ((4, 24, 24), (4, 48, 24), (0, 0, 0), False, 8),
    ("a100", 8, True): ((8, 24, 24), (8, 30, 24), (0, 0, 0), False, 16),
    # 18 NVLinks of 20.6: 6 rings of 60 in 370.8, twice as many of 30. NVLS: (n + 1) x 60, or x 40 for eight.
    ("h100", 2, False): ((12, 30, 30), (12, 60, 60), (2, 60, 60), False, 24),
    ("h100", 4, False): ((12, 30, 30), (12, 30, 30), (4, 60, 60), False, 24),
    ("h100", 8, False): ((12, 30, 30), (12, 30, 30), (8, 40, 60), False, 24),
    ("h100", 1, True): ((2, 24, 24), (2, 48, 24), (0, 0, 0), True, 4),
    ("h100", 2, True): ((4, 24, 24), (4, 48, 24), (2, 48, 48), True, 8),
    ("h100", 4, True): ((8, 24, 24), (8, 48, 24), (4, 48, 48), True, 16),
    ("h100", 8, True): ((8, 48, 48), (8, 48, 48), (8, 40, 48), True, 16),
    # 18 NVLinks of 40.1: 8 rings of 90 in 721.8, twice as many of 45. NVLS: 9 x 80, 5 x 90.
    ("b200", 2, False): ((16, 45, 45), (16, 90, 90), (2, 90, 90), False, 32),
    ("b200", 4, False): ((16, 45, 45), (16, 45, 45), (4, 90, 90), False, 32),
    ("b200", 8, False): ((16, 45, 45), (16, 45, 45), (8, 80, 90), False, 32),
    ("b200", 8, True): ((8, 48, 48), (8, 96, 48), (8, 48, 48), True, 16),
}

SIMPLE_ONLY = (NVLS, NVLS_TREE, PAT, DIRECT, CHAIN)
BASE = ((6.8, 14.0, 8.4), (6.6, 14.0, 8.4), (0,) * 3, (0,) * 3, (0,) * 3, (0,) * 3, (8.0,) * 3)
NVLINK_LATENCY = ((0.6, 1.25, 4.0), (0.6, 1.9, 3.4), None, None, (0, 0, 25), (0, 0, 25), (0, 0, 4.0))
NET_LATENCY = ((5.0, 8.5, 14), (2.7, 4.0, 14.0), None, None, (0, 0, 18), (0, 0, 20.9), (0, 0, 14))
COLUMN = {"a100": 1, "h100": 2, "b200": 3}
LL_MOST = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
RING_LL128 = (20.0, 20.0, 36.7, 40.0)
TREE_LL128 = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29), (55.6, 31.67, 20))
TREE_MOST = ((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36), (70, 42.8, 24))
NVLS_TREE_MOST = ((26.5, 18.5, 10), (24, 23.6, 17.8), (0, 57.7, 45.5), (0, 96, 80))
CORRECTION = (
    "1 1 1 1 .9 .8 .7 .7 .7 .7 .6 .5 .4 .4 .5 .6 .7 .8 .9 1 1 1 1 1",
    "1 1 1 1 1 .9 .8 .8 .8 .7 .6 .6 .6 .6 .6 .6 .8 .9 .9 .9 .9 1 1 1",
    ".9 .9 .9 .9 .9 .9 .9 .8 .7 .6 .6 .5 .5 .5 .5 .6 .7 .8 .7 .7 .8 .9 .9 .9",
)


def table_of(gpu: str, n: int, nodes: int, kind: str) -> dict[tuple[int, int], tuple[float, float]]:
    """Return (algorithm, protocol) -> (GB/s, us), as the tables of a communicator hold them."""
    ring, tree, nvls, chain, _ = GRAPHS[gpu, n, nodes > 1]
    graphs = {TREE: tree, RING: ring, NVLS: nvls, NVLS_TREE: nvls, PAT: tree}
    ranks, col, row = n * nodes, min(nodes, 3) - 1, COLUMN[gpu]
    amd = gpu == "a100"
    steps = {"all_reduce": 2 * ranks - 2, "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(
        kind, ranks
    )
    table = {}
    for a, (channels, intra, inter) in graphs.items():
        if kind in ("broadcast", "reduce") and a != RING:
            continue
        if kind in ("all_gather", "reduce_scatter") and a not in (PAT, RING, NVLS):
            continue
        if kind == "all_reduce" and a == PAT:
            continue
        if (a == PAT and n > 1) or (a == NVLS_TREE and nodes == 1) or (a == NVLS and nodes > 1):
            continue
        for p in range(3):
            if a in SIMPLE_ONLY and p != SIMPLE:
                continue
            bw = intra if nodes <= 2 else inter
            if a in (NVLS, NVLS_TREE):
                if channels < 2:
                    continue
                inside = intra * (0.85 if gpu == "h100" else 0.74) * (channels - 1) / channels
                inside = inside * 2 if kind == "all_reduce" else inside * (n - 1) / n
                bw = min(inside, inter * 2 if nodes <= 2 and a == NVLS_TREE else inter)
                if a == NVLS_TREE:
                    bw = min(bw, NVLS_TREE_MOST[row][col])
            bus = channels * bw
            ll_most = LL_MOST[row][0] if nodes == 1 else LL_MOST[1 if amd else 0][col]
            if a == RING and p == LL:
                bus = min(ll_most, bus / 2)
            if a == RING and p == LL128:
                bus = min(0.92 * bus, channels * RING_LL128[row])
            if a == TREE:
                bus = min(0.92 * bus, channels * TREE_MOST[row][col])
            if a == TREE and p == LL:
                bus = min(bus / 3.8, ll_most)
            if a == TREE and p == LL128:
                share = 7 / 9 if nodes == 1 else 120 / 128
                bus = min(bus * share, channels * TREE_LL128[row][col])
            if a == TREE and chain:
                bus *= 0.85
            if a == PAT:
                bus *= 0.75
            if a == RING or kind not in ("all_gather", "reduce_scatter"):
                bus *= ranks / steps if a in (RING, NVLS, NVLS_TREE) else 0.5
            near = NVLINK_LATENCY[a][p]  # type: ignore[index]
            far = NET_LATENCY[TREE if n == 1 else a][p]  # type: ignore[index]
            us = BASE[a][p]
            if a == RING and kind in ("broadcast", "reduce"):
                if nodes == 1 or n == 1:
                    us += (NVLINK_LATENCY if nodes == 1 else NET_LATENCY)[RING][p]  # type: ignore[index]
                else:
                    us += ranks * NET_LATENCY[TREE if p == SIMPLE else RING][p]  # type: ignore[index]
            elif a == RING:
                overhead = 0.0 if nodes == 1 else (2.0 if amd else 1.0) * (3 if p == SIMPLE else 1)
                crossings = 0 if nodes == 1 else (2 if kind == "all_reduce" else 1) * (nodes - 1)
                us += (steps - crossings) * max(near, overhead) + crossings * far
            elif a == TREE:
                us += 2 * ((n - 1) * near + floor_log2(nodes) * far)
            elif a == NVLS:
                us = near
            elif a == NVLS_TREE:
                us += near + 2 * floor_log2(nodes) * far
            elif a == PAT:
                us += floor_log2(nodes) * (far / 3.5) + ranks * 2.8
            table[a, p] = bus, us
    return table


def floor_log2(x: int) -> int:
    found = -1
    while x:
        found, x = found + 1, x // 2
    return found


def second_opinion(gpu: str, n: int, nodes: int, kind: str, nbytes: int) -> tuple[str, str, float, int, int]:
    """Return algorithm, protocol, us, and the channels and threads before launch."""
    _, _, _, _, there = GRAPHS[gpu, n, nodes > 1]
    ranks = n * nodes
    best = (inf, -1, -1)
    for (a, p), (bw, us) in sorted(table_of(gpu, n, nodes, kind).items()):
        if bw == 0:
            continue
        size = floor_log2(nbytes // 64)
        if a == TREE and kind == "all_reduce" and 0 <= size < 23:
            bw *= float(CORRECTION[p].split()[size])
        if a == NVLS_TREE and gpu == "b200" and kind == "all_reduce" and 0 <= size < 24:
            bw *= float(CORRECTION[p].split()[size])
        if (
            a == RING
            and p == SIMPLE
            and nodes > 1
            and kind == "all_reduce"
            and nbytes // (there * ranks) >= 64
        ):
            us *= 1.4
        took = us + nbytes / 1000 / bw
        if took < best[0]:
            best = took, a, p
    took, a, p = best
    nc, nt, threshold = there, (512, 640, 512)[p], (8 * ranks if a == RING else 8, 8, 64)[p]
    if a == RING and p == SIMPLE and GRAPHS[gpu, n, nodes > 1][0][0] * GRAPHS[gpu, n, nodes > 1][0][1] <= 12:
        nt = 256
    if a in (NVLS, NVLS_TREE):
        nc, nt = {"h100": 16, "b200": 24 if nodes == 1 else 32 if nodes == 2 else 24}[gpu], 640
    else:
        if a == PAT:
            nt = 640
        while nbytes < nc * nt * threshold and nc >= 2:
            nc -= 1
        while nbytes < nc * nt * threshold and nt % 128 == 0:
            nt //= 2
        if p == SIMPLE:
            nt += {RING: 32, TREE: 128}.get(a, 0)
        nt = max(nt, 96)
        if a in (TREE, PAT):
            nt = 640
    return NAMES[a], PROTOCOLS[p], took, nc, nt


def spread(kind: str, protocol: str, ranks: int, nbytes: int, nc: int, most: int) -> int:
    """Return the channels after launch, cell by cell."""
    count = nbytes if kind not in ("all_gather", "reduce_scatter") else -(-nbytes // ranks)
    traffic = {"all_reduce": 2, "all_gather": ranks, "reduce_scatter": ranks}.get(kind, 1)
    traffic *= 4 if protocol == "ll" else 1
    cell = 16
    while cell * traffic < 32768:
        cell += 16
    of_all = max(32768, count * traffic)
    of_each = of_all // nc
    of_each += -of_each % 16
    left, used = -(-count // cell), 0
    per_channel = min(left, -(-of_each // (cell * traffic)))
    while left > 0:
        left, used = left - per_channel, used + 1
    return min(max(used, 1), most)


@pytest.mark.parametrize(("gpu", "n", "several"), GRAPHS)
def test_what_the_search_finds(gpu: str, n: int, several: bool) -> None:
    ring, tree, nvls, chain, channels = GRAPHS[gpu, n, several]
    found = search(GENERATIONS[gpu], (n, n) if several else (n,))
    assert (found.ring, found.tree, found.nvls) == (ring, tree, nvls)
    assert (found.simple_tree, found.channels) == (chain, channels)
    total = GENERATIONS[gpu].nvlink
    if not several:  # each GPU sends on every ring, and to every head of NVLS, once more if it is one
        assert ring[0] * ring[1] <= total
        assert (n + 1) * nvls[1] <= total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("gpu", "n", "several"), GRAPHS)
def test_the_choice_at_every_power_of_two(gpu: str, n: int, several: bool, kind: str) -> None:
    for nodes in (2, 3, 4, 16) if several else (1,):
        tuner = NcclTuner(GENERATIONS[gpu], (n,) * nodes)
        for power in range(34):
            for nbytes in (1 << power, (1 << power) * 3 // 2):
                choice = tuner.choose(kind, nbytes)
                algorithm, protocol, us, nc, nt = second_opinion(gpu, n, nodes, kind, nbytes)
                assert (choice.algorithm, choice.protocol, choice.threads) == (algorithm, protocol, nt)
                assert choice.estimate_us == pytest.approx(us, rel=1e-12)
                most = nc if algorithm.startswith("nvls") else GRAPHS[gpu, n, several][4]
                assert choice.channels == spread(kind, protocol, n * nodes, nbytes, nc, most)


def test_by_hand() -> None:
    """H100, eight GPUs, all-reduce."""
    tuner = NcclTuner(GENERATIONS["h100"], (8,))
    # Ring, LL: 14 steps of 0.6 us; half of 360 GB/s is more than the 141 it can, of which 8/14 count.
    small = tuner.choose("all_reduce", 4096)
    assert small[:2] == ("ring", "ll")
    assert small.estimate_us == pytest.approx(6.6 + 14 * 0.6 + 4.096 / (141 * 8 / 14))
    assert (small.channels, small.threads) == (1, 96)  # 4096 < 128 threads x 64 B, halved to 64; three warps
    # NVLS: 8 channels of 40 x 0.85 x 7/8 x 2 = 59.5 GB/s, 8/14 of 476 = 272.
    large = tuner.choose("all_reduce", 1 << 26)
    assert large[:4] == ("nvls", "simple", 16, 640)
    assert large.estimate_us == pytest.approx(25 + (1 << 26) / 272e3)
    # Without the switch: 8.4 + 14 x 3.4 = 56 us; 360 x 8/14 GB/s.
    without = NcclTuner(GENERATIONS["h100"], (8,), nvls=False).choose("all_reduce", 1 << 26)
    assert without[:4] == ("ring", "simple", 24, 544)
    assert without.estimate_us == pytest.approx(56 + (1 << 26) / (360e3 * 8 / 14))


def test_two_nodes_by_hand() -> None:
    """H100, 16 GPUs: in the switches first (25 us), then over the network there and back (20.9 us each)."""
    choice = NcclTuner(GENERATIONS["h100"], (8, 8)).choose("all_reduce", 1 << 28)
    # 8 channels of min(59.5, 2 x 48, 57.7), of which 16/30 count.
    assert choice[:3] == ("nvls-tree", "simple", 16)
    assert choice.estimate_us == pytest.approx(25 + 2 * 20.9 + (1 << 28) / (8e3 * 57.7 * 16 / 30))


def test_one_gpu_of_each_node_gathers_by_pat() -> None:
    choice = NcclTuner(GENERATIONS["h100"], (1,) * 16).choose("all_gather", 1 << 16)
    assert choice.algorithm == "pat"
    # 4 rounds of 14 / 3.5 us, 2.8 us for each rank; 2 channels of 24, of which three quarters.
    assert choice.estimate_us == pytest.approx(8 + 4 * 4 + 16 * 2.8 + (1 << 16) / (1e3 * 48 * 0.75))


def test_messages_by_hand() -> None:
    tuner = NcclTuner(GENERATIONS["h100"], (8,))
    # Eight messages of 8 KiB, one channel for each, short enough for LL.
    assert tuner.choose("all_to_all", 1 << 16)[:3] == ("direct", "ll", 8)
    # 8 MiB each: at most 4 of the 32 channels for each of 8 peers.
    assert tuner.choose("all_to_all", 1 << 26)[:3] == ("direct", "simple", 32)
    # One message of 64 MiB over 32 / 2 channels: parts of 4 MiB, below 16 MiB.
    pair = NcclTuner(GENERATIONS["h100"], (2,))
    assert pair.choose("send", 1 << 26)[:3] == ("direct", "simple", 16)
    assert pair.choose("send", 1 << 14)[:3] == ("direct", "ll", 1)


def test_messages_before_2_29() -> None:
    """Up to 16 KiB for each channel that a peer may have (32) by LL, in parts of 8 KiB at least."""
    old = NcclTuner(GENERATIONS["a100"], (4,), version=(2, 27))
    assert old.choose("all_to_all", 4 << 19)[:3] == ("direct", "ll", 32)
    assert old.choose("all_to_all", 4 << 14)[:3] == ("direct", "ll", 8)  # 16 KiB: two parts
    assert old.choose("all_to_all", (4 << 19) + 4)[1] == "simple"
    new = NcclTuner(GENERATIONS["a100"], (4,))
    assert new.choose("all_to_all", 4 << 14)[:3] == ("direct", "ll", 4)
    assert new.choose("all_to_all", 4 << 15)[1] == "simple"


def test_messages_to_other_nodes_have_no_buffers_for_ll() -> None:
    for per_node, kind in (((1, 1), "send"), ((8, 8), "all_to_all")):
        for version in ((2, 27), (2, 30)):
            tuner = NcclTuner(GENERATIONS["h100"], per_node, version=version)
            assert tuner.choose(kind, 512)[1] == "simple"


def test_a_weaker_node_counts() -> None:
    found = search(GENERATIONS["h100"], (8, 4))
    assert found.ring == (8, 24, 24)


def test_one_rank_and_unknown_kinds() -> None:
    assert NcclTuner(GENERATIONS["h100"], (1,)).choose("all_reduce", 8).estimate_us == 0
    with pytest.raises(InputError, match="NCCL has no scan"):
        NcclTuner(GENERATIONS["h100"], (2,)).choose("scan", 8)
    barrier = NcclTuner(GENERATIONS["h100"], (2,)).choose("barrier", 0)
    assert barrier == NcclTuner(GENERATIONS["h100"], (2,)).choose("all_reduce", 4)
