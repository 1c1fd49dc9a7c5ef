"""What holds in every serving run: of blocks by hand and drawn, of all batchers in drawn runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from serving_runs import linear_step

from policies.serving.batcher import Batcher, Request, Step
from policies.serving.classic import Orca, Sarathi, Static, VllmV0
from policies.serving.kv_blocks import KvBlocks
from policies.serving.vllm import Vllm019
from scenarios.serving.engine import Serve
from sim.base.errors import InputError, StuckError

# -- blocks ------------------------------------------------------------------------------------------------


def test_blocks_are_taken_from_the_head_and_come_back_at_the_tail() -> None:
    """A sequence's tail is freed first, so that it is also taken first: the beginning is kept longest."""
    cache = KvBlocks(6, 16, reserved=1)
    first, second = cache.take(3), cache.take(1)
    assert (first, second, cache.free, cache.used) == ([1, 2, 3], [4], 1, 4)
    cache.release(first)
    assert cache.take(4) == [5, 3, 2, 1]


def test_the_block_that_was_published_first_is_found() -> None:
    """Two blocks may have one key; when the first loses it the second is found."""
    cache = KvBlocks(4, 16)
    a, b = cache.take(1), cache.take(1)
    cache.publish(a[0], 1)
    cache.publish(b[0], 1)
    assert cache.find([1, 2]) == a
    cache.release(a)
    assert cache.find([1]) == a  # free, and still found
    assert cache.take(3) == [2, 3, 0]
    assert cache.find([1]) == b


def test_a_hit_brings_a_free_block_back() -> None:
    """It leaves the free list, wherever it is there, and is shared."""
    cache = KvBlocks(4, 16)
    mine = cache.take(2)
    for block, key in zip(mine, [1, 2], strict=True):
        cache.publish(block, key)
    cache.release(mine)
    hits = cache.find([1, 2, 3])
    assert (hits, cache.count_unreferenced(hits), cache.free) == (mine, 2, 4)
    cache.share(hits)
    cache.share(hits[:1])
    assert (cache.references, cache.free, cache.count_unreferenced(hits)) == ([2, 1], 2, 0)
    assert cache.take(2) == [2, 3]
    cache.release(hits)
    assert (cache.free, cache.used, cache.find([2])) == (1, 3, [1])


def test_blocks_that_lost_their_key_are_told() -> None:
    """`count_lost`: leading keys that were there, and would have been hits."""
    cache = KvBlocks(2, 16)
    mine = cache.take(2)
    cache.publish(mine[0], 1)
    cache.publish(mine[1], 2)
    cache.release(mine)
    cache.take(1)
    assert (cache.find([1, 2]), cache.count_lost([2, 3]), cache.count_lost([3])) == (
        [0],
        1,
        0,
    )


def test_no_block_left_to_give_out_is_refused() -> None:
    """The first is the engine's own."""
    with pytest.raises(InputError, match="no block is left for keys and values; blocks: 1, reserved: 1"):
        KvBlocks(1, 16, reserved=1)


@examples(100)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release", "publish"]), st.integers(0, 9))))
def test_blocks_do_what_lists_do(ops: list[tuple[str, int]]) -> None:
    """The same as free list, references and keys that are kept in the plainest way."""
    cache, count = KvBlocks(7, 4, reserved=1), 7
    free, references, keys = list(range(1, count)), [0] * count, [0] * count
    published: list[int] = []  # in order
    tables: list[list[int]] = []
    for op, number in ops:
        if op == "take" and number <= len(free):
            taken, free = free[:number], free[number:]
            for block in taken:
                references[block], keys[block] = 1, 0
            published = [block for block in published if block not in taken]
            assert cache.take(number) == taken
            tables.append(taken)
        elif op == "share":
            wanted = [1 + i for i in range(number % 4)]
            hits: list[int] = []
            for key in wanted:
                found = [block for block in published if keys[block] == key]
                if not found:
                    break
                hits.append(found[0])
            assert cache.find(wanted) == hits
            for block in hits:
                references[block] += 1
            free = [block for block in free if block not in hits]
            cache.share(hits)
            tables.append(hits)
        elif op == "release" and tables:
            table = tables.pop(number % len(tables))
            for block in reversed(table):
                references[block] -= 1
                free += [block] if not references[block] else []
            cache.release(table)
        elif op == "publish":
            for block in [each for each in tables[-1] if not keys[each]] if tables else []:
                keys[block] = 1 + number % 4
                published.append(block)
                cache.publish(block, keys[block])
        given = len(cache.references)  # what was never given out is not written down
        assert (cache.references, references[given:]) == (references[:given], [0] * (count - given))
        assert (cache.free, cache.used) == (len(free), count - 1 - len(free))
        assert [key or 0 for key in cache.key] == keys[:given]


# -- batchers ----------------------------------------------------------------------------------------------


@st.composite
def drawn_requests(
    draw: st.DrawFn, most: int, *, accepted: bool = False, remote: bool = False
) -> list[Request]:
    """Return a few requests with at most so many tokens, with prefixes in common, and second turns."""
    found: list[Request] = []
    now = 0
    for i in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0, 0, 1, 700, 3000, 20_000])) * 1000
        output = draw(st.integers(1, 12))
        segments = [
            (draw(st.sampled_from(["a", "b"])), draw(st.integers(1, 20))),
            (f"u{i}", draw(st.integers(1, 9))),
        ]
        if found and draw(st.booleans()):
            turn = draw(st.sampled_from(found))
            segments = [*turn.segments, (f"out:{turn.id}", turn.output), (f"u{i}", 3)]
        if sum(tokens for _, tokens in segments) + output > most:
            segments = [(f"u{i}", draw(st.integers(1, most - output)))]
        found.append(
            Request(
                f"r{i}",
                now,
                sum(tokens for _, tokens in segments),
                output,
                priority=draw(st.integers(0, 2)),
                segments=segments,
                accepted=draw(st.lists(st.integers(0, 3), max_size=3)) if accepted else (),
                remote=remote and draw(st.booleans()),
            )
        )
    return found


def check_blocks(cache: KvBlocks, batcher: Batcher, requests: Sequence[Request]) -> None:
    """Each block has as many references as owners, and is free if it has none."""
    owned = Counter(block for request in requests for block in request.blocks)
    assert {block: count for block, count in enumerate(cache.references) if count} == dict(owned)
    assert cache.used == len(owned)
    assert cache.used + cache.free == cache.blocks - batcher.reserved_blocks
    assert 0 not in owned or not batcher.reserved_blocks


def run(
    batcher: Batcher, requests: Sequence[Request], blocks: int, most: int, budget: int | None, stuck: str
) -> list[Step] | None:
    """Run requests, and check what holds after each pass and at the end of each step.

    Returns the steps; None: nothing went on, for the reason that was expected.
    """
    batcher.begin(KvBlocks(blocks, 4, batcher.reserved_blocks), most)
    seats = batcher.max_num_seqs  # type: ignore[attr-defined]
    steps: list[Step] = []
    pull = lambda now, request, tokens: now + 1000 * (50 + tokens)  # noqa: E731
    serve = Serve(linear_step(500_000, 1000, 100), [batcher], pull=pull)
    begin, ended = serve.begin, batcher.ended

    def check(step: Step | None = None) -> None:
        check_blocks(batcher.cache, batcher, requests)
        assert len(batcher.running) <= seats
        for request in requests:
            if not request.finished:
                drafts = request.drafts if step is None else step.drafts.get(request, request.drafts)
                assert request.computed <= request.known + request.in_flight + drafts
                assert len(request.blocks) * 4 >= request.computed

    def scheduled(replica: int, step: Step, pulled: dict[Request, int]) -> int:
        steps.append(step)
        assert len(steps) < 5000
        check(step)
        decodes = sum(count == 1 for count in step.tokens.values())
        assert budget is None or sum(step.tokens.values()) <= max(budget, decodes)
        assert all(count > 0 for count in step.tokens.values())
        assert isinstance(batcher, Sarathi) or not set(step.tokens) & set(step.preempted)
        return begin(replica, step, pulled)

    def over(step: Step) -> None:
        ended(step)
        check()

    serve.begin, batcher.ended = scheduled, over  # type: ignore[method-assign]
    try:
        serve.run(requests)
    except StuckError as error:
        if not stuck or stuck not in str(error):
            raise
        return None
    return steps


def check_end(batcher: Batcher, requests: Sequence[Request], steps: Sequence[Step]) -> None:
    """All are finished, with their tokens at times that do not decrease; no block is in use."""
    assert (batcher.count_unfinished(), batcher.cache.used) == (0, 0)
    for request in requests:
        assert request.finished
        assert len(request.token_ns) == request.outputs
        assert list(request.token_ns) == sorted(request.token_ns)
        assert request.scheduled_ns is not None
        assert request.arrival_ns <= request.scheduled_ns < request.token_ns[0]
    assert Counter(request for step in steps for request in step.finished) == Counter(requests)
    assert sum(len(step.preempted) for step in steps) == sum(each.preemptions for each in requests)


@examples(400)
@given(st.data())
def test_vllm(data: st.DataObject) -> None:
    """Budget, seats, blocks and outputs, whatever is chosen; what is computed is what is known."""
    draw = data.draw
    most, by_rank = 60, draw(st.booleans())
    mode = draw(st.sampled_from(["async", "drafts", "pulls", "plain"]))
    drafts, remote = draw(st.integers(1, 3)) if mode == "drafts" else 0, mode == "pulls"
    chunked = draw(st.booleans())
    budget = draw(st.integers(8, 40)) if chunked else most
    batcher = Vllm019(
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=budget,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=draw(st.booleans()),
        scheduling_policy="priority" if by_rank else "fcfs",
        long_prefill_token_threshold=draw(st.sampled_from([0, 5, 20])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        num_speculative_tokens=drafts,
        draft_model=bool(drafts) and draw(st.sampled_from((False, True, "eagle"))),
        async_scheduling=mode == "async",
    )
    requests = draw(drawn_requests(most - drafts, accepted=bool(drafts), remote=remote))
    blocks = draw(st.integers(-(-most // 4) + 2, 26))
    steps = run(batcher, requests, blocks, most, budget, "whose prompts were pulled" if by_rank else "")
    if steps is None:
        return
    check_end(batcher, requests, steps)
    assert all(request.outputs == request.output for request in requests)
    assert all(0 <= (request.hits or 0) < request.prompt + request.output for request in requests)
    if not (batcher.enable_prefix_caching or remote or drafts or any(step.preempted for step in steps)):
        scheduled = sum(count for step in steps for count in step.tokens.values())
        assert scheduled == sum(request.prompt + request.output - 1 for request in requests)
    if not (by_rank or remote):
        order = [request for step in steps for request in step.hits if request.scheduled_ns is not None]
        firsts = list(dict.fromkeys(order))
        assert firsts == sorted(requests, key=lambda each: each.arrival_ns)  # nobody overtakes


def test_a_hazard_of_pulled_prompts_under_priority() -> None:
    """The first in rank does not fit, and who holds the blocks comes after it: nothing runs ever again."""
    pulled = Request("pulled", 0, 16, 4, priority=1, remote=True)
    first = Request("first", 10_000, 12, 4, priority=0)
    batcher = Vllm019(scheduling_policy="priority", async_scheduling=False)
    assert run(batcher, [pulled, first], 7, 32, None, "4 of 6 blocks are held by requests whose") is None
    fcfs = Vllm019(async_scheduling=False)
    again = [Request("pulled", 0, 16, 4, remote=True), Request("first", 10_000, 12, 4)]
    assert run(fcfs, again, 7, 32, None, "") is not None


@pytest.mark.parametrize("of", [Static, Orca, VllmV0, Sarathi])
@examples(100)
@given(st.data())
def test_classic(of: type[Static], data: st.DataObject) -> None:
    """The same of the batchers before it; one that was preempted there may sample more than was asked for."""
    draw = data.draw
    seats, budget = draw(st.integers(1, 5)), None
    if of in (VllmV0, Sarathi):
        budget = 60 if of is VllmV0 else draw(st.integers(5, 60))
        batcher = of(max_num_seqs=seats, max_num_batched_tokens=budget)
    else:
        batcher = of(max_num_seqs=seats)
    requests = draw(drawn_requests(60))
    stuck = "counts its outputs from 0 again" if of in (VllmV0, Sarathi) else ""
    steps = run(batcher, requests, draw(st.integers(15, 60)), 60, budget, stuck)
    if steps is None:
        return
    check_end(batcher, requests, steps)
    for request in requests:
        assert request.outputs >= request.output
        assert request.outputs == request.output or request.preemptions
    if not any(request.preemptions for request in requests):
        scheduled = sum(count for step in steps for count in step.tokens.values())
        assert scheduled == sum(request.prompt + request.output - 1 for request in requests)
    if of is Static:  # a batch is whole: nobody joins while any of it runs
        for step in steps:
            assert not (step.hits and set(step.tokens) - set(step.hits))
