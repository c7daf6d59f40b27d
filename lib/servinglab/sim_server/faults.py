"""What goes wrong on purpose, and for which requests.

A fault is written ``KIND:p=0.05`` (each request, with this probability), ``KIND:every=20`` (each 20th request) or,
where one request asks for it by a header, just ``KIND``. Some take ``seconds=``. At most one fault befalls a request:
the first, in the order given, that draws it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from servinglab.base.checks import check_choice, check_number

KINDS = {
    "429": "answers 429, with Retry-After of `seconds`",
    "500": "answers 500",
    "slow": "sends nothing for `seconds`, then all that has come since",
    "hang": "stops in the middle of the answer and keeps the connection open",
    "cut": "closes the connection in the middle of the answer",
    "malformed": "sends an event that isn't JSON in the middle of the answer",
    "utf8": "sends an event whose text isn't UTF-8 in the middle of the answer",
    "refuse": "serves this request, and then refuses connections for `seconds`",
}
_TAKE_SECONDS = ("429", "slow", "refuse")
HEADER = "x-servinglab-fault"


@dataclass(frozen=True)
class Fault:
    """One fault, and when it comes.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    p : float or None
        The probability for each request, in [0, 1].
    every : int or None
        Each how manyth request, at least 1; not together with `p`.
    seconds : float
        How long it lasts, where it lasts.
    """

    kind: str
    p: float | None = None
    every: int | None = None
    seconds: float = 1.0

    def __post_init__(self) -> None:
        check_choice("fault", self.kind, tuple(KINDS))
        if self.p is not None and self.every is not None:
            raise ValueError(f"fault {self.kind} takes p or every, not both")
        if self.p is not None:
            check_number("p", self.p, ge=0, le=1)
        if self.every is not None:
            check_number("every", self.every, ge=1, integer=True)
        check_number("seconds", self.seconds, ge=0, le=86_400)


def parse_fault(text: str) -> Fault:
    """A fault from its text.

    Raises
    ------
    ValueError
        If it isn't one.

    Examples
    --------
    >>> parse_fault("slow:p=0.1,seconds=2")
    Fault(kind='slow', p=0.1, every=None, seconds=2.0)
    """
    kind, _, rest = text.strip().partition(":")
    check_choice("fault", kind, tuple(KINDS))
    settings: dict[str, float | int] = {}
    for item in filter(None, rest.split(",")):
        name, _, value = item.partition("=")
        allowed = ("p", "every", "seconds") if kind in _TAKE_SECONDS else ("p", "every")
        check_choice(f"a setting of fault {kind}", name.strip(), allowed)
        try:
            settings[name.strip()] = int(value) if name.strip() == "every" else float(value)
        except ValueError:
            raise ValueError(f"{name} of fault {kind} must be a number; got {value!r}") from None
    return Fault(kind, **settings)  # type: ignore[arg-type]


class Faults:
    """Which fault befalls the next request.

    Parameters
    ----------
    faults : sequence of Fault
        Each with `p` or `every`.
    seed : int
        Of the draws; each fault has draws of its own, so that adding one doesn't move the others'.

    Attributes
    ----------
    count : Counter
        How often each kind came.

    Examples
    --------
    >>> faults = Faults([parse_fault("cut:every=2"), parse_fault("500:every=3")], seed=1)
    >>> [fault.kind if (fault := faults.draw()) else None for _ in range(6)]
    [None, 'cut', '500', 'cut', None, 'cut']
    """

    def __init__(self, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        self.count: Counter[str] = Counter()
        self.set(faults, seed)

    def set(self, faults: Sequence[Fault], seed: int = 0) -> None:
        """Replace all faults; requests count from 1 again."""
        for fault in faults:
            if fault.p is None and fault.every is None:
                raise ValueError(f"fault {fault.kind} needs p= or every=")
        self.active = tuple(faults)
        self._draws = [random.Random(f"{seed} {place} {fault.kind}") for place, fault in enumerate(self.active)]
        self._requests = 0

    def draw(self, asked_for: str | None = None) -> Fault | None:
        """The fault of the next request; `asked_for` is what its header says, which goes first."""
        self._requests += 1
        hits = [
            draws.random() < fault.p if fault.p is not None else self._requests % (fault.every or 1) == 0
            for fault, draws in zip(self.active, self._draws, strict=True)
        ]
        fault = next((fault for fault, hit in zip(self.active, hits, strict=True) if hit), None)
        if asked_for is not None:
            fault = parse_fault(asked_for)
        if fault is not None:
            self.count[fault.kind] += 1
        return fault
