"""An independent simulation of a shared GPU, thread block by thread block, in exact fractions."""

from __future__ import annotations

from fractions import Fraction

from gpu_kernels import Launch

from devices.kernel_demand import Demand, demand


class Block:
    """A load that runs: how much of it is done, in units of which `duration` are a load."""

    def __init__(self, kernel: Resident, done: Fraction) -> None:
        self.kernel, self.done = kernel, done


class Resident:
    """A kernel of the oracle."""

    def __init__(
        self, index: int, launch: Launch, asked: Demand, rank: tuple[int, int], partition: int
    ) -> None:
        self.index, self.launch, self.asked, self.rank, self.partition = index, launch, asked, rank, partition
        # Blocks that are not known are of 1 ns, as many as the kernel's time on all SMs holds.
        self.length = launch.duration_ns if asked.waves else 1
        self.left = asked.loads if asked.waves else asked.loads * launch.duration_ns
        self.blocks: list[Block] = []
        self.began = False


def block_by_block(
    launches: list[Launch],
    *,
    sms: int,
    priorities: list[int],
    capacities: list[int],
    partition_of: list[int],
    bandwidth: int | None,
    gap_ns: int,
    max_resident: int,
) -> list[tuple[int, int]]:
    """Every block of every kernel, nanosecond by nanosecond; no closed form, no events."""
    streams: dict[int, list[int]] = {}
    for i, launch in enumerate(launches):
        streams.setdefault(launch.stream, []).append(i)
    asked = [demand(x.attributes, x.duration_ns, sms=sms, bandwidth_bytes_per_s=bandwidth) for x in launches]
    free = list(capacities)
    start: dict[int, int] = {}
    end: dict[int, int] = {}
    kernels: list[Resident] = []
    served: dict[int, Resident | None] = {}
    free_at = dict.fromkeys(streams, 0)
    running: dict[int, int] = {}
    speed: dict[int, Fraction] = {}
    arrivals = 0

    def dispatch(now: int) -> None:
        def may_run(kernel: Resident) -> bool:
            return kernel.began or sum(k.began for k in kernels) < max_resident

        in_order = sorted(kernels, key=lambda k: k.rank)
        for p in range(len(capacities)):
            for kernel in in_order:
                while kernel.partition == p and free[p] and kernel.left and may_run(kernel):
                    free[p] -= 1
                    kernel.left -= 1
                    kernel.blocks.append(Block(kernel, Fraction(0)))
                    if not kernel.began:
                        kernel.began = True
                        start[kernel.index] = now
        for p in range(len(capacities)):
            here = (k for k in in_order if k.partition == p and k.left and may_run(k))
            served[p] = next(here, None)
        began = [k for k in kernels if k.began]
        wanted = [len(k.blocks) * k.asked.load_bytes_per_s for k in began]
        for k, want, got in zip(began, wanted, raise_together(wanted, bandwidth), strict=True):
            speed[k.index] = max(k.asked.waves, 1) * (got / want if want else Fraction(1))

    now = 0
    while len(end) < len(launches):
        # 1. blocks that end in the last ns, the earliest first; the served kernel goes on with its own
        freed = False
        for k in kernels:
            while True:
                over_blocks = [b for b in k.blocks if b.done >= k.length]
                if not over_blocks:
                    break
                first = max(over_blocks, key=lambda b: b.done)
                k.blocks.remove(first)
                if k.left and served.get(k.partition) is k:
                    k.left -= 1
                    k.blocks.append(Block(k, first.done - k.length))
                else:
                    free[k.partition] += 1
                    freed = True
        over = [k for k in kernels if k.began and not k.left and not k.blocks]
        kernels = [k for k in kernels if k not in over]
        for k in over:
            end[k.index] = now
            free_at[k.launch.stream] = now + gap_ns
            del running[k.launch.stream]
        # 2. arrivals, in the order of the streams
        arrived = False
        for s in sorted(streams):
            if s in running or not streams[s]:
                continue
            i = streams[s][0]
            if max(launches[i].ready_ns, free_at[s]) <= now:
                running[s] = streams[s].pop(0)
                arrivals += 1
                kernels.append(Resident(i, launches[i], asked[i], (priorities[s], arrivals), partition_of[s]))
                arrived = True
        # 3. SMs are offered once all of this is known
        if arrived or freed:
            dispatch(now)
        # 4. one nanosecond
        for k in kernels:
            for block in k.blocks:
                block.done += speed[k.index]
        now += 1
    return [(start[i], end[i]) for i in range(len(launches))]


def raise_together(wanted: list[int], capacity: int | None) -> list[Fraction]:
    """Max-min by its definition: raise all that want more, as far as the capacity lasts."""
    got = [Fraction(0)] * len(wanted)
    left = Fraction(sum(wanted) if capacity is None else capacity)
    while left and any(g < w for g, w in zip(got, wanted, strict=True)):
        hungry = [i for i, w in enumerate(wanted) if got[i] < w]
        step = min(left / len(hungry), min(wanted[i] - got[i] for i in hungry))
        for i in hungry:
            got[i] += step
        left -= step * len(hungry)
    return got
