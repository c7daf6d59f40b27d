"""Who is in the next step when tokens and memory are short? The rules of vLLM's V1 scheduler.

`PagedScheduler` decides, step by step, how many tokens of which requests are computed, and which blocks of KV cache
they hold. It knows nothing of time: the engines ask it for a step (`schedule`), let the step pass, and hand the step
back (`finish`). Its rules were read from vLLM 0.32.0 and are held against traces of the real scheduler.

Modelled: running requests first, a budget of tokens a step, chunked prefill, caps on sequences, a threshold for long
prompts, blocks taken when a request is scheduled, the full-prompt gate, the watermark, preemption by recompute, first
come first served and priorities, prefix caching, asynchronous scheduling. Not modelled: speculative decoding, sliding
windows, several groups of layers, KV transfer, beams.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from servinglab.base.checks import check_number
from servinglab.scheduling.blocks import Block, BlockPool
from servinglab.scheduling.schedulers import ContinuousBatching

NO_LIMIT = 2**60  # tokens or blocks that nobody can use up


@dataclass(eq=False)
class Sequence:
    """A request as the scheduler sees it.

    Attributes
    ----------
    number : int
        The workload's index; earlier numbers came earlier.
    prompt_tokens, output_tokens : int
    priority : int
        Smaller is more urgent.
    key : callable
        Says what the i-th full block holds; equal keys are equal contents, all that came before included.
    outputs : int
        Tokens of the answer that have come back.
    in_flight : int
        Tokens whose step hasn't come back (asynchronous scheduling).
    computed : int
        Tokens whose KV is in the cache, those of the step under way included.
    blocks : list
    kept : int
        Blocks from the start whose contents have been noted for sharing.
    preemptions : int
    aborted : bool
        Whether it was given up: what a step under way brings it is dropped.
    """

    number: int
    prompt_tokens: int
    output_tokens: int
    priority: int
    key: Callable[[int], Hashable]
    outputs: int = 0
    in_flight: int = 0
    computed: int = 0
    blocks: list[Block] = field(default_factory=list)
    kept: int = 0
    preemptions: int = 0
    aborted: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that are known: the prompt and what has come back of the answer."""
        return self.prompt_tokens + self.outputs

    @property
    def at_most(self) -> int:
        """Tokens that it will ever hold: all but the last, which is never read again."""
        return self.prompt_tokens + self.output_tokens - 1

    @property
    def urgency(self) -> tuple[int, int]:
        """The smallest goes first, the largest is preempted first."""
        return self.priority, self.number


@dataclass(frozen=True)
class Chunk:
    """What one step computes of one request: `tokens` from position `start`; `emits` says whether a token comes out."""

    sequence: Sequence
    start: int
    tokens: int
    emits: bool


@dataclass(frozen=True)
class Step:
    """One step: its chunks in order, and who was preempted to make room."""

    chunks: list[Chunk]
    preempted: list[Sequence]


class _Waiting:
    """The line: a queue whose head the preempted join, or a heap by urgency."""

    def __init__(self, policy: str) -> None:
        self._by_priority = policy == "priority"
        self._queue: deque[Sequence] = deque()
        self._heap: list[tuple[tuple[int, int], Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap) if self._by_priority else len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return (s for _, s in sorted(self._heap, key=lambda e: e[0])) if self._by_priority else iter(self._queue)

    def join(self, sequence: Sequence, preempted: bool = False) -> None:
        if self._by_priority:
            heapq.heappush(self._heap, (sequence.urgency, sequence))
        elif preempted:
            self._queue.appendleft(sequence)
        else:
            self._queue.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        if self._by_priority:
            self._heap.remove((sequence.urgency, sequence))
            heapq.heapify(self._heap)
        else:
            self._queue.remove(sequence)

    def head(self) -> Sequence:
        return self._heap[0][1] if self._by_priority else self._queue[0]

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[1] if self._by_priority else self._queue.popleft()


class PagedScheduler:
    """Decides each step; holds who runs, who waits and the pool of blocks.

    Parameters
    ----------
    rules : ContinuousBatching
        The settings.
    num_blocks : int, optional
        Blocks of KV cache that requests can use (vLLM's log counts one more, its null block). None: no limit.
    block_size : int
        Tokens in a block.

    Examples
    --------
    >>> from servinglab import ContinuousBatching
    >>> engine = PagedScheduler(ContinuousBatching(8, 16), num_blocks=8, block_size=4)
    >>> engine.add(Sequence(0, prompt_tokens=20, output_tokens=2, priority=0, key=lambda i: (0, i)))
    >>> for _ in range(3):
    ...     step = engine.schedule()
    ...     print([(c.start, c.tokens, c.emits) for c in step.chunks], engine.used_blocks)
    ...     done = engine.finish(step)
    [(0, 16, False)] 4
    [(16, 4, True)] 5
    [(20, 1, True)] 6
    >>> [s.number for s in done], engine.used_blocks
    ([0], 0)
    """

    def __init__(self, rules: ContinuousBatching, num_blocks: int | None = None, block_size: int = 16) -> None:
        self.rules = rules
        self.block_size = check_number("block_size", block_size, ge=1, integer=True)
        self.num_blocks = NO_LIMIT if num_blocks is None else check_number("num_blocks", num_blocks, ge=1, integer=True)
        self.pool = BlockPool(self.num_blocks, rules.prefix_caching)
        self.running: list[Sequence] = []
        self.waiting = _Waiting(rules.policy)
        self.hit_tokens = 0
        self.longest = rules.max_model_len or NO_LIMIT
        self.change(rules)

    @property
    def used_blocks(self) -> int:
        """Blocks in use."""
        return self.num_blocks - self.pool.free

    def change(self, rules: ContinuousBatching) -> None:
        """Follow these rules from the next step on: others for seats, budget and watermark.

        Nobody who runs loses a seat or pauses: the budget always holds a token for each.
        """
        self.rules = rules
        self.budget = rules.max_num_batched_tokens or NO_LIMIT
        self.watermark_blocks = int(rules.watermark * (self.num_blocks + 1))  # the null block counts

    def check_start(self) -> None:
        """Refuse a pool that can't hold one request of `max_model_len`, as the engine itself does when it starts."""
        longest = self.rules.max_model_len
        if longest is not None and self._blocks(longest) > self.num_blocks:
            raise ValueError(
                f"num_blocks must hold one request of max_model_len = {longest} tokens, "
                f"{self._blocks(longest)} blocks; got {self.num_blocks}"
            )

    @property
    def largest_request(self) -> int:
        """The most tokens, prompt and answer, of a request that can be served to its end."""
        to_compute = self.num_blocks * self.block_size
        if not self.rules.chunked_prefill:
            to_compute = min(to_compute, self.budget)
        return min(self.longest, to_compute + 1)

    def why_never(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why such a request can never be served to its end; None if it can."""
        total = prompt_tokens + output_tokens
        if total > self.longest:
            return f"{total} tokens are more than max_model_len = {self.longest}"
        if self._blocks(total - 1) > self.num_blocks:
            return f"{self._blocks(total - 1)} blocks at its end are more than the pool's {self.num_blocks}"
        if not self.rules.chunked_prefill and total - 1 > self.budget:
            return f"{total - 1} tokens to compute at once are more than max_num_batched_tokens = {self.budget}"
        return None

    def add(self, sequence: Sequence) -> None:
        """A request comes.

        Raises
        ------
        ValueError
            If it can never be served to its end (`why_never`): a real engine would wait for ever.
        """
        reason = self.why_never(sequence.prompt_tokens, sequence.output_tokens)
        if reason is not None:
            raise ValueError(f"request {sequence.number} can never be served: {reason}")
        self.waiting.join(sequence)

    def schedule(self) -> Step:
        """Decide the next step: running requests first, in their order, then the head of the line while it fits.

        With `prefill_first` it's the other way round: a step of prompts, if there is one, else a step of answers.
        """
        chunks: dict[Sequence, int] = {}
        preempted: list[Sequence] = []
        budget = max(self.budget, len(self.running))  # less than one token each only after a change of the rules
        left = self._run(chunks, preempted, budget, prompts=self.rules.prefill_first)
        if not preempted:
            self._admit(chunks, left)
        if self.rules.prefill_first and not chunks:  # also where a prompt only lost its blocks, lest it come and go
            self._run(chunks, preempted, budget)
        return Step([self._begin(sequence, tokens) for sequence, tokens in chunks.items()], preempted)

    def _run(self, chunks: dict[Sequence, int], preempted: list[Sequence], budget: int, prompts: bool = False) -> int:
        """Give those who run their next tokens (or only those with unfinished prompts); return the budget left."""
        threshold = self._threshold()
        i = 0
        while i < len(self.running) and budget > 0:
            sequence = self.running[i]
            tokens = sequence.tokens + sequence.in_flight - sequence.computed
            if prompts and tokens == 1:
                i += 1
                continue
            if threshold:
                tokens = min(tokens, threshold)
            tokens = min(tokens, budget, self.longest - 1 - sequence.computed)
            if tokens <= 0 or self._ends_in_flight(sequence):
                i += 1
                continue
            while not self._hold(sequence, tokens):
                victim = self._victim()
                self.running.remove(victim)
                if victim in chunks:
                    budget += chunks.pop(victim)
                    i -= 1
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            if sequence in preempted:
                break
            chunks[sequence] = tokens
            budget -= tokens
            i += 1
        return budget

    def _admit(self, chunks: dict[Sequence, int], budget: int) -> None:
        """Let the head of the line in, while there are seats, tokens and blocks for it."""
        threshold = self._threshold()
        while self.waiting and budget > 0 and len(self.running) < self.rules.seats:
            sequence = self.waiting.head()
            hits = self.pool.find(sequence.key(k) for k in range((sequence.tokens - 1) // self.block_size))
            start = len(hits) * self.block_size
            tokens = sequence.tokens - start
            if threshold:
                tokens = min(tokens, threshold)
            if not self.rules.chunked_prefill and tokens > budget:
                break
            tokens = min(tokens, budget)
            if not self._fits(sequence, hits, start + tokens):
                break
            self.waiting.pop()
            self.pool.share(hits)
            sequence.blocks, sequence.kept = hits, len(hits)
            sequence.computed = start
            self.hit_tokens += start
            if self.rules.reserve_whole_answer:
                sequence.blocks = self.pool.take(self._blocks(sequence.at_most))
            self._hold(sequence, tokens)
            self.running.append(sequence)
            chunks[sequence] = tokens
            budget -= tokens

    def finish(self, step: Step) -> list[Sequence]:
        """A step comes back: whoever's tokens were all computed gets one more; the finished leave."""
        done = []
        for chunk in step.chunks:
            sequence = chunk.sequence
            if not chunk.emits or sequence.aborted:
                continue
            sequence.outputs += 1
            sequence.in_flight -= 1
            if sequence.outputs == sequence.output_tokens:
                done.append(sequence)
                if sequence in self.running:
                    self.running.remove(sequence)
                else:  # preempted while its last token was under way
                    self.waiting.remove(sequence)
                self.pool.give_back(sequence.blocks)
                sequence.blocks = []
            elif sequence.computed:  # not preempted meanwhile: the new token may have filled a block
                self._keep_full(sequence, min(sequence.computed, sequence.tokens))
        return done

    def abort(self, sequence: Sequence) -> None:
        """A request is given up: it leaves the line or those who run, and its blocks are free."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.pool.give_back(sequence.blocks)
        sequence.blocks = []
        sequence.aborted = True

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _threshold(self) -> int:
        rules, here = self.rules, len(self.running) + len(self.waiting)
        if not rules.long_prefill_token_threshold or here <= 1:
            return 0
        if rules.adaptive_threshold:
            return max(rules.long_prefill_token_threshold, self.budget // here)
        return rules.long_prefill_token_threshold

    def _ends_in_flight(self, sequence: Sequence) -> bool:
        """Whether the step under way brings the request's last token, so that another would be too much."""
        return sequence.outputs + sequence.in_flight >= sequence.output_tokens

    def _hold(self, sequence: Sequence, tokens: int) -> bool:
        """Take the blocks that the request needs for so many more tokens; False if there aren't enough."""
        short = self._blocks(sequence.computed + tokens) - len(sequence.blocks)
        if short > self.pool.free:
            return False
        sequence.blocks += self.pool.take(max(0, short))
        self._keep_full(sequence, min(sequence.computed + tokens, sequence.tokens))
        return True

    def _keep_full(self, sequence: Sequence, tokens: int) -> None:
        """Note what the blocks hold that these tokens fill; those before were noted in an earlier step."""
        if self.rules.prefix_caching:
            full = tokens // self.block_size
            for k in range(sequence.kept, full):
                self.pool.keep(sequence.blocks[k], sequence.key(k))
            sequence.kept = max(sequence.kept, full)

    def _victim(self) -> Sequence:
        if self.rules.policy == "priority":
            return max(self.running, key=lambda sequence: sequence.urgency)
        return self.running[-1]

    def _preempt(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.blocks)
        sequence.blocks = []
        sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.join(sequence, preempted=True)

    def _fits(self, sequence: Sequence, hits: list[Block], tokens: int) -> bool:
        """Whether blocks for the chunk, and for all present tokens behind the gate, are free beyond the watermark."""
        spare = self.pool.free - self.pool.unused(hits) - (self.watermark_blocks if self.running else 0)
        if self.rules.reserve_whole_answer:
            tokens = sequence.at_most
        elif self.rules.full_prompt_gate:
            tokens = max(tokens, min(sequence.tokens, self.longest))
        return self._blocks(tokens) - len(hits) <= spare

    def _begin(self, sequence: Sequence, tokens: int) -> Chunk:
        start = sequence.computed
        sequence.computed += tokens
        emits = sequence.computed >= sequence.tokens + sequence.in_flight
        if emits:
            sequence.in_flight += 1
        return Chunk(sequence, start, tokens, emits)
