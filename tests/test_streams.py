"""Chunks to tokens: the known answers, and what every split must keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servinglab.metrics.percentiles import weighted_percentile
from servinglab.metrics.streams import chunk_gaps, chunk_tpot_s

CHUNKS = ([0.50, 0.52, 0.60, 0.62, 0.70], [1, 1, 4, 1, 3])


def test_known_answers() -> None:
    assert round(1e3 * chunk_tpot_s(*CHUNKS), 2) == 22.22
    assert round(1e3 * weighted_percentile(*chunk_gaps(*CHUNKS), 0.5), 1) == 20.0
    by_chunk = np.diff(CHUNKS[0])
    assert np.median(by_chunk) == pytest.approx(0.05)  # a chunk isn't a token


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 9)), min_size=1, max_size=30))
def test_the_split_keeps_the_time_and_the_tokens(chunks: list[tuple[float, int]]) -> None:
    waits, tokens = zip(*chunks, strict=True)
    arrived = np.cumsum(waits)
    gaps, shared = chunk_gaps(arrived, tokens)
    assert gaps @ shared == pytest.approx(arrived[-1] - arrived[0], abs=1e-9)
    assert shared.sum() == sum(tokens) - tokens[0]
    if tokens[0] == 1 and len(tokens) > 1:  # then the mean ITL is the TPOT
        assert gaps @ shared / shared.sum() == pytest.approx(chunk_tpot_s(arrived, tokens), rel=1e-9, abs=1e-12)


def test_one_token_has_no_tpot_and_one_chunk_no_gap() -> None:
    assert math.isnan(chunk_tpot_s([0.5], [1]))
    assert chunk_tpot_s([0.5], [3]) == 0.0  # all at once
    assert [each.size for each in chunk_gaps([0.5], [3])] == [0, 0]


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (([], []), "arrived_s must hold at least one chunk"),
        (([0.1, 0.2], [1]), "tokens must hold 2 values; got 1"),
        (([0.1, 0.2], [1, 0]), r"tokens\[1\] must be a whole number >= 1"),
        (([0.2, 0.1], [1, 1]), r"arrived_s must never decrease; got arrived_s\[1\]=0.1 after 0.2"),
        (([0.1, math.nan], [1, 1]), r"arrived_s\[1\] must be a finite number"),
    ],
)
def test_refuses(chunks: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chunk_gaps(*chunks)
