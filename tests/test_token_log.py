"""The packed log of the token loop: every column comes out as the plain log has it, however it was packed."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import servinglab as sl
from servinglab.engine import fast
from servinglab.result import packed_log as kernel
from servinglab.result import totals

STEP = sl.AffineStep(7e-3, 2e-5, 2e-5, 4e-8)


def runs(step=STEP):
    """A run that preempts, with pauses, in the fast engine and in the reference."""
    lengths = dict(prompt_tokens=sl.lengths.Uniform(10, 200), output_tokens=sl.lengths.Geometric(30))
    work = sl.poisson(8.0, 300, seed=4, **lengths)
    rules, pool = sl.ContinuousBatching(8, 100), sl.Blocks(30)
    return [serve(work, rules, step, kv=pool) for serve in (sl.simulate, sl.reference)]


def packings(monkeypatch):
    """The usual packing; wide columns; a few rows at a time."""
    yield
    monkeypatch.setattr(fast, "_fits_narrow", lambda *_run: False)
    yield
    monkeypatch.setattr(fast, "_LOG_ROWS", 2)
    yield


def test_columns_come_out_as_in_the_plain_log(monkeypatch):
    for _ in packings(monkeypatch):
        fast, plain = runs()
        log, steps = fast.segments, plain.segments
        assert fast.preemptions.sum() > 0 and (log.start_ns[1:] > log.end_ns[:-1]).any() and log.waiting.max() > 0
        first = np.searchsorted(steps.start_ns, log.start_ns)
        last = first + log.steps - 1
        for name in ("start_ns", "pot", "running", "charged", "prefill_tokens", "decode_tokens", "first_tokens",
                     "kv_tokens", "prefill_pairs", "waiting", "preempted"):  # fmt: skip
            np.testing.assert_array_equal(getattr(log, name), getattr(steps, name)[first], name)
        for name in ("end_ns", "kv_blocks"):
            np.testing.assert_array_equal(getattr(log, name), getattr(steps, name)[last], name)
        waited = np.cumsum(steps.waited_request_s)[first]
        np.testing.assert_allclose(np.cumsum(log.waited_request_s)[:-1], waited[:-1], rtol=1e-12)
        assert log.waited_s == pytest.approx(log.waited_request_s.sum(), rel=1e-12)
        assert {len(getattr(log, field.name)) for field in fields(log)} == {len(log)}


def test_columns_are_whole_numbers_that_nobody_changes():
    log = runs()[0].segments
    assert log.charged.dtype == np.int64 and log.charged is log.charged
    with pytest.raises(ValueError, match="read-only"):
        log.charged[0] = 1
    with pytest.raises(AttributeError, match="nothing"):
        _ = log.nothing


def test_an_answer_longer_than_a_row_holds_takes_several_rows():
    most = int(kernel.MOST_STEPS)
    work = sl.Workload.from_arrivals([0.0], prompt_tokens=5, output_tokens=2 * most + 10)
    log = sl.simulate(work, sl.ContinuousBatching(4, 64), STEP).segments
    assert log.steps.tolist() == [1, most, most, 9] and log.first_tokens.tolist() == [1, 0, 0, 0]
    assert (log.start_ns[1:] == log.end_ns[:-1]).all()


@pytest.mark.parametrize("step", [STEP, sl.AffineStep(0.01, 0.001)], ids=["uneven", "even"])
def test_gaps_are_counted_alike_however_long_the_list(monkeypatch, step):
    fast, plain = runs(step)
    for listed in (1, 7, 1 << 20):
        monkeypatch.setattr(totals, "_LISTED", listed)
        for run in (fast, plain):
            run.__dict__.pop("log_facts", None)
        for mine, theirs in zip(fast.itl(), plain.itl(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert fast.itl()[1].sum() == (fast.output_tokens - 1).sum()


def test_gaps_and_counts_too_large_for_one_number_are_joined_too():
    gaps, tokens = np.array([2**61, 5, 2**61, 7]), np.array([3, 2**40, 4, 1])
    assert totals._join(gaps, tokens, 4) == 3
    assert gaps[:3].tolist() == [5, 7, 2**61] and tokens[:3].tolist() == [2**40, 1, 7]


def test_gaps_that_share_a_slot_are_counted_apart():
    slots = int(kernel.SLOTS)
    recent, gaps, tokens, used = np.zeros((slots, 2), np.int64), np.zeros(4, np.int64), np.zeros(4, np.int64), 0
    for gap, count in ((5, 2), (5, 3), (5 + slots, 7), (5, 1), (6, 4)):
        used = kernel._count_gap(gap, count, recent, gaps, tokens, used)
    assert gaps[:used].tolist() == [5, 5 + slots] and tokens[:used].tolist() == [5, 7]
    assert recent[5:7].tolist() == [[5, 1], [6, 4]]
