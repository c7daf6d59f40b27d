"""Which requests kept their limits?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from servinglab.base.checks import check_choice, check_number

if TYPE_CHECKING:
    from servinglab.result.result import Result

from servinglab.base.arrays import Floats

SLO_NAMES = ("ttft_s", "tpot_s", "e2e_s")


def good_requests(result: Result, slo: Mapping[str, float]) -> npt.NDArray[np.bool_]:
    """Which requests finished within every limit of `slo`, by the rules of `summarize`.

    Examples
    --------
    >>> import servinglab as sl
    >>> orders = sl.Workload.from_arrivals([0.0, 0.1, 0.3])
    >>> served = sl.simulate(orders, sl.StaticBatching(2, last="partial"), sl.AffineStep(0.4, 0.02))
    >>> good_requests(served, {"e2e_s": 0.6}).tolist()
    [True, True, False]
    """
    slo = check_slo(slo)
    return within_limits(result, slo, {name: getattr(result, name) for name in slo})


def check_slo(slo: Mapping[str, float]) -> dict[str, float]:
    """The limits as plain numbers, if each has a name that is known and is > 0 s.

    Examples
    --------
    >>> check_slo({"ttft_s": 2})
    {'ttft_s': 2.0}
    """
    if not isinstance(slo, Mapping):
        raise ValueError(f"slo must map names of latencies to limits in s, such as {{'ttft_s': 2.0}}; got {slo!r}")
    for name in slo:
        check_choice("slo's names", name, SLO_NAMES)
    return {name: check_number(f"slo[{name!r}]", limit, gt=0) for name, limit in slo.items()}


def within_limits(result: Result, slo: Mapping[str, float], latencies_s: Mapping[str, Floats]) -> npt.NDArray[np.bool_]:
    good = result.finished  # a new array
    for name, limit in slo.items():
        within = latencies_s[name] <= limit  # False for NaN
        good &= within | (result.output_tokens <= 1) if name == "tpot_s" else within
    return good
