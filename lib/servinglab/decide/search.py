"""Which batch keeps a promise about the P99?

`best_batch` tries batches from small to large, looks closer where it matters, and says what would keep the promise if
nothing it tried does. `evaluate` judges one setting, `remedies` says what else would do, `answer` is what comes back,
and `formulas` has the two answers on paper that know of no queue.

What it doesn't model: traffic whose rate changes while it is measured, several machines behind a router, prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from servinglab.base.checks import check_callback
from servinglab.decide.answer import BestBatch, Candidate, settings_as_text, times_as_text
from servinglab.decide.evaluate import Judge, Progress, Question, Traffic, by_settings
from servinglab.decide.remedies import remedies_for
from servinglab.scheduling.blocks import HasBlocks
from servinglab.step_time.affine import StepTime


class SearchInterrupted(KeyboardInterrupt):
    """Raised when `best_batch` is interrupted; `candidates` holds what was tried."""

    def __init__(self, candidates: tuple[Candidate, ...]) -> None:
        best = min(candidates, key=lambda each: each.ratio, default=None)
        so_far = (
            f"; the smallest so far: {settings_as_text(best.settings)}, {times_as_text(best.percentiles)}"
            if best
            else ""
        )
        super().__init__(f"interrupted after {len(candidates)} candidates{so_far}")
        self.candidates = candidates


def best_batch(
    traffic: Traffic,
    step_time: StepTime,
    slo: Mapping[str, float],
    scheduler: str = "static",
    *,
    max_batch_size: int = 64,
    q: float = 0.99,
    prefer: str | None = None,
    pots: int | None = 1,
    kv: HasBlocks | None = None,
    max_num_batched_tokens: int | None = None,
    requests: int | None = None,
    max_requests: int | None = None,
    seed: int = 1,
    remedies: bool = True,
    progress: Progress | None = None,
) -> BestBatch:
    """The best batch whose P99 keeps a promise, of a scheduler's settings from small to large.

    *Which settings.* Static: `batch_size`. Dynamic: `batch_size` and `window_s`, up to the smallest limit. Continuous:
    `max_num_seqs` and, if `max_num_batched_tokens` gives the largest, that budget of tokens too.

    *How they are judged.* Exactly where theory has a law (a Poisson rate of one-step orders, an `AffineStep`, batches
    up to 64; static, or continuous with one pot), by simulation otherwise. All see the same requests (common random
    numbers), so that two of them differ by their settings alone. A setting for which requests come faster than they can
    be served fails without a run, where a closed form says so. P99 isn't monotone in the batch: too small a batch
    queues, too large a one gathers and cooks for long. So no failure ends the search: it begins with a coarse grid over
    the whole range, and halves the steps around the best that keeps the promise and around the smallest P99. With a
    `Workload`, whose P99 is jagged, it tries every batch size up to 128.

    *How sure.* The short runs of the search only order the candidates, and the best of many is also the luckiest. So
    the best run again on other requests, four times as many each time, until the 95 % interval of each percentile
    (`intervals.percentile_interval`) lies on one side of its limit. The first that surely keeps the promise is the
    choice. With a `Workload` the promise is about just these requests: the percentile decides, and the interval says
    what another such day might bring. An overload so small that the longest run doesn't feel it isn't seen where no
    closed form tells of it.

    Parameters
    ----------
    traffic : float, Workload, or callable
        λ > 0: Poisson arrivals of one-step orders. A workload: these requests. Or a function of (n, seed) that makes n
        requests, such as ``lambda n, seed: poisson(4, n, seed, prompt_tokens=500, output_tokens=Geometric(200))``.
    step_time, pots, kv
        As in `simulate`.
    slo : mapping
        Limits in seconds on the percentiles of ``ttft_s``, ``tpot_s``, ``e2e_s``; at least one, and all are to be kept.
        Requests that never finish rank last; those of one token have no TPOT and aren't ranked there.
    scheduler : {"static", "dynamic", "continuous"}
    max_batch_size : int
        The largest `batch_size` or `max_num_seqs`, ≥ 1.
    q : float
        Which percentile; 0 < q < 1.
    prefer : {"least_work", "headroom"}, optional
        Of those that keep the promise: the one whose pots are busy least (for static batching the largest batch), or
        the one whose percentiles lie furthest below their limits (the smallest setting of those within 1 %). By default
        least work for static and dynamic, headroom for continuous batching, where the cap hardly changes the work.
    max_num_batched_tokens : int, optional
        Continuous: the largest budget of tokens per step to try. None: no budget.
    requests, max_requests : int, optional
        How many to generate for the short runs (20,000, or 5,000 if answers have several tokens), and for the longest
        (32 times as many). The first tenth is a warm-up that isn't counted.
    seed : int
        Of the generated requests.
    remedies : bool
        Whether to look for what would keep the promise if nothing tried does; this takes some more searches.
    progress : callable, optional
        Called before each run with (candidates so far, settings).

    Returns
    -------
    BestBatch

    Raises
    ------
    ValueError
        If an argument breaks its rule.
    SearchInterrupted
        On Ctrl-C, with the candidates so far.

    Examples
    --------
    >>> from servinglab import AffineStep
    >>> pot = AffineStep(fixed_s=0.4, per_request_s=0.02)
    >>> answer = best_batch(20, pot, {"e2e_s": 2.0}, max_batch_size=32)
    >>> answer.choice.settings, round(answer.choice.percentiles["e2e_s"], 3)
    ({'batch_size': 18}, 1.954)
    """
    check_callback("progress", progress)
    judge = Judge(
        Question(
            traffic, step_time, slo, scheduler, max_batch_size, q, prefer, pots, kv, max_num_batched_tokens, requests,
            max_requests, seed, progress,
        )
    )  # fmt: skip
    try:
        candidates, choice = judge.decide()
        answer = BestBatch(
            kind=judge.kind,
            traffic=judge.traffic_name,
            rate_rps=judge.rate_rps,
            slo=judge.slo,
            q=judge.q,
            prefer=judge.prefer,
            choice=choice,
            candidates=candidates,
            formula=judge.formula(),
            gathering=judge.gathering(),
            alone=judge.alone(),
        )
        answer = replace(answer, unpriced_attention=judge.unpriced_attention())
        if choice is not None or not remedies or answer.hopeless:
            return answer
        return replace(answer, remedies=tuple(remedies_for(judge, answer.smallest)))
    except KeyboardInterrupt:
        raise SearchInterrupted(by_settings(judge.tried)) from None
