"""Who is in the next step?

Three ways to fill a pot. *Static* waits for a full batch and *dynamic* for a full batch or the end of a window; both
cook a batch until its longest answer is done. *Continuous* re-forms the batch at every step: who is done leaves, and
the line fills the free seats. (Some authors call both of the last two "dynamic".) A fourth, *length-bucketed*, is
dynamic with a line for each range of prompt lengths, so that a batch wastes little padding.

Without further settings the line is first come, first served, prompts are computed whole in a request's first step, and
there is no budget of tokens and no limit of memory. A scheduler is then plain data plus one method, `admit`, which both
engines follow. Where tokens or blocks are counted, `servinglab.scheduling.vllm_rules` has the rules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

from servinglab.base.checks import check_choice, check_flag, check_number


class Scheduler(Protocol):
    """What the engines ask of a scheduler."""

    run_to_completion: ClassVar[bool]
    """Whether a pot takes nobody in until everyone in it is done."""

    @property
    def streaming(self) -> bool:
        """Whether each token is handed over at its step, or the whole answer when the batch ends."""
        ...

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """How many of the line join a pot that is between steps."""
        ...


@dataclass(frozen=True)
class StaticBatching:
    """Wait for `batch_size` requests, then cook until the longest answer is done.

    Parameters
    ----------
    batch_size : int
        Requests in a batch. At least 1.
    last : {"full_price", "partial", "never"}
        What becomes of a batch that can't fill any more because nobody else will come: it is cooked at the price of
        a full one, cooked at the price of its own size, or never cooked (its requests end as UNSERVED).
    streaming : bool
        False: every answer is handed over when the batch ends, so first token and finish are the batch's end.
        True: each token is handed over at its step, yet the seat stays taken until the batch ends.
    padded : bool
        True: every seat is computed until the batch ends, as long as its longest prompt and its longest answer.
        False: a step costs only those who still lack tokens; ``last="full_price"`` needs padded seats.

    Examples
    --------
    >>> StaticBatching(4).admit(waiting=3, running=0, oldest_ns=0, now_ns=10**9, more_to_come=True)
    0
    >>> StaticBatching(4).admit(waiting=5, running=0, oldest_ns=0, now_ns=10**9, more_to_come=True)
    4
    """

    batch_size: int
    last: str = "full_price"
    streaming: bool = False
    padded: bool = True
    run_to_completion: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_number("batch_size", self.batch_size, ge=1, integer=True))
        check_choice("last", self.last, ("full_price", "partial", "never"))
        _check_flags(self, "streaming", "padded")
        if self.last == "full_price" and not self.padded:
            raise ValueError('last="full_price" charges empty seats, so padded must be True; got False')

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """A full batch into an empty pot; the last, incomplete one by the rule `last`."""
        if running:
            return 0
        if waiting >= self.batch_size:
            return self.batch_size
        return 0 if more_to_come or self.last == "never" else waiting


@dataclass(frozen=True)
class DynamicBatching:
    """Cook when `batch_size` requests wait or the oldest has waited `window_s`, whichever comes first.

    The window belongs to the oldest request in the line and runs from its arrival. While every pot is busy it may run
    out; the batch then starts when a pot is free.

    Parameters
    ----------
    batch_size : int
        The most requests in a batch. At least 1.
    window_s : float
        The longest that the oldest request waits for company, in seconds. At least 0.
    streaming, padded : bool
        As in `StaticBatching`.

    Examples
    --------
    >>> window = DynamicBatching(batch_size=4, window_s=0.5)
    >>> window.admit(waiting=2, running=0, oldest_ns=0, now_ns=499_999_999, more_to_come=True)
    0
    >>> window.admit(waiting=2, running=0, oldest_ns=0, now_ns=500_000_000, more_to_come=True)
    2
    """

    batch_size: int
    window_s: float
    streaming: bool = False
    padded: bool = True
    run_to_completion: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_number("batch_size", self.batch_size, ge=1, integer=True))
        object.__setattr__(self, "window_s", check_number("window_s", self.window_s, ge=0, le=1e9))
        _check_flags(self, "streaming", "padded")

    @property
    def window_ns(self) -> int:
        """The window in whole nanoseconds."""
        return round(self.window_s * 1e9)

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """Up to a full batch into an empty pot, once it is full or the oldest request's window is over."""
        if running:
            return 0
        if waiting >= self.batch_size or now_ns >= oldest_ns + self.window_ns:
            return min(waiting, self.batch_size)
        return 0


@dataclass(frozen=True)
class LengthBucketedBatching(DynamicBatching):
    """`DynamicBatching` with a line for each range of prompt lengths: a batch is formed within one line.

    A line is ready when `batch_size` requests stand in it or the window of its oldest is over. An empty pot takes its
    batch from the ready line whose oldest request came first. So no line is passed over for long; but a line that
    few join gives small batches, and its requests wait their whole window.

    Parameters
    ----------
    batch_size, window_s, streaming, padded
        As in `DynamicBatching`.
    edges : sequence of int
        Where the ranges end, ascending, each at least 0: the first line is for prompts of at most ``edges[0]`` tokens,
        the next for longer ones of at most ``edges[1]``, and the last for all longer than the last edge.

    Examples
    --------
    Two short prompts and two long ones, one pot of two seats; padded to the longest in the batch:

    >>> import servinglab as sl
    >>> work = sl.Workload.from_arrivals([0.0, 0.1, 0.2, 0.3], prompt_tokens=[10, 500, 10, 500])
    >>> step = sl.AffineStep(1.0, 0.0, per_prefill_token_s=0.001)
    >>> mixed = sl.simulate(work, sl.DynamicBatching(2, window_s=5.0), step)
    >>> apart = sl.reference(work, sl.LengthBucketedBatching(2, window_s=5.0, edges=[128]), step)
    >>> [int(run.segments.prefill_tokens.sum()) for run in (mixed, apart)]
    [2000, 1020]
    >>> apart.scheduled_s.tolist()
    [0.2, 1.22, 0.2, 1.22]
    """

    _: KW_ONLY
    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.edges, str) or not isinstance(self.edges, Iterable):
            raise ValueError(f"edges must be a sequence of whole numbers; got {self.edges!r}")
        edges = tuple(check_number(f"edges[{k}]", edge, ge=0, integer=True) for k, edge in enumerate(self.edges))
        if not edges or any(a >= b for a, b in pairwise(edges)):
            raise ValueError(f"edges must ascend and be at least one; got {edges}")
        object.__setattr__(self, "edges", edges)

    def line_of(self, prompt_tokens: int) -> int:
        """The number of the line, from 0, that a prompt of this length joins.

        Examples
        --------
        >>> [LengthBucketedBatching(8, 0.5, edges=[128, 512]).line_of(tokens) for tokens in (128, 129, 4000)]
        [0, 1, 2]
        """
        return bisect_left(self.edges, prompt_tokens)


@dataclass(frozen=True)
class ContinuousBatching:
    """Re-form the batch at every step: finished requests leave and the line fills the free seats.

    With kitchen orders of one step this is "take what is there, up to `max_num_seqs`". With a budget of tokens or a KV
    cache it follows vLLM's V1 scheduler (see `servinglab.scheduling.vllm_rules`), and the settings below
    `max_num_batched_tokens` count. Their names and defaults are vLLM 0.32's where it has them, but for prefix caching
    and asynchronous scheduling, which vLLM turns on: here they are off unless asked for.

    Parameters
    ----------
    max_num_seqs : int
        The most requests in a pot at once. At least 1.
    max_num_batched_tokens : int, optional
        The most tokens that one step computes, prompts and answers together. At least `max_num_seqs`. None: no limit.
    chunked_prefill : bool
        Whether a prompt may be computed in pieces over several steps.
    long_prefill_token_threshold : int
        While more than one request is here, the most tokens of one request in a step; 0 for no such limit.
    adaptive_threshold : bool
        Whether that threshold grows to an even share of the budget where the share is larger.
    policy : {"fcfs", "priority"}
        Who waits at the head and who is preempted: by arrival, or by (priority, arrival), the smallest first.
    max_num_active_seqs : int, optional
        A tighter cap on running requests. None: `max_num_seqs`.
    max_model_len : int, optional
        The most tokens of one request, prompt and answer; longer ones are rejected. None: no limit.
    full_prompt_gate : bool
        Whether a request is admitted only if blocks for all its present tokens are free, not only for the first chunk.
    reserve_whole_answer : bool
        Whether a request is admitted only if blocks for its prompt and its whole answer are free, and takes them all at
        once. Nobody is then preempted, and blocks lie unused until the answer grows into them. (Engines that reserve
        know only the longest answer allowed; here its true length stands for that.)
    prefill_first : bool
        Whether prompts go before answers: while any waiting or unfinished prompt can be computed, a step computes
        prompts only, and running answers pause. vLLM's first engine did so; its V1 engine doesn't.
    watermark : float
        Share of the blocks that admission leaves free while something runs. In [0, 1).
    prefix_caching : bool
        Whether full blocks are kept after use and shared by requests whose prompts begin alike.
    async_scheduling : bool
        Whether a step is scheduled before the step before it has come back, so that a finished request holds its seat
        and blocks for one more step.

    Examples
    --------
    >>> ContinuousBatching(8).admit(waiting=5, running=6, oldest_ns=0, now_ns=0, more_to_come=True)
    2
    """

    max_num_seqs: int
    max_num_batched_tokens: int | None = None
    _: KW_ONLY
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    adaptive_threshold: bool = False
    policy: str = "fcfs"
    max_num_active_seqs: int | None = None
    max_model_len: int | None = None
    full_prompt_gate: bool = True
    reserve_whole_answer: bool = False
    prefill_first: bool = False
    watermark: float = 0.0
    prefix_caching: bool = False
    async_scheduling: bool = False
    streaming: ClassVar[bool] = True
    run_to_completion: ClassVar[bool] = False

    def __post_init__(self) -> None:
        def whole(name: str, **bounds: float) -> None:
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_number(name, value, integer=True, **bounds))

        whole("max_num_seqs", ge=1)
        whole("max_num_batched_tokens", ge=self.max_num_seqs)
        whole("max_model_len", ge=2)
        if not self.chunked_prefill and self.max_num_batched_tokens is not None and self.max_model_len is not None:
            whole("max_num_batched_tokens", ge=self.max_model_len)
        whole("long_prefill_token_threshold", ge=0, **({"le": self.max_model_len} if self.max_model_len else {}))
        check_choice("policy", self.policy, ("fcfs", "priority"))
        whole("max_num_active_seqs", ge=1, le=self.max_num_seqs)
        _check_flags(
            self, "chunked_prefill", "adaptive_threshold", "full_prompt_gate", "reserve_whole_answer", "prefill_first",
            "prefix_caching", "async_scheduling",
        )  # fmt: skip
        if self.prefill_first and self.async_scheduling:
            raise ValueError("prefill_first doesn't go with async_scheduling; got True for both")
        if self.reserve_whole_answer and self.prefix_caching:
            raise ValueError("reserve_whole_answer doesn't go with prefix_caching; got True for both")
        object.__setattr__(self, "watermark", check_number("watermark", self.watermark, ge=0, lt=1))

    @property
    def seats(self) -> int:
        """The most requests that run at once."""
        return self.max_num_seqs if self.max_num_active_seqs is None else self.max_num_active_seqs

    @property
    def counts_tokens(self) -> bool:
        """Whether any setting beyond the number of seats is in use."""
        return self != ContinuousBatching(self.max_num_seqs)

    def admit(self, waiting: int, running: int, oldest_ns: int, now_ns: int, more_to_come: bool) -> int:
        """As many as there are free seats."""
        return min(waiting, self.max_num_seqs - running)


def _check_flags(scheduler: object, *names: str) -> None:
    for name in names:
        object.__setattr__(scheduler, name, check_flag(name, getattr(scheduler, name)))
