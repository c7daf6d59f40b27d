"""Clients of a closed loop, who think after an answer and then send the next request that nobody has sent."""

from __future__ import annotations

from typing import Any

from servinglab.base.compiled import part
from servinglab.engine.kernel.heap import push


@part
def send_next(s: Any, think: Any, pending: Any, now: int) -> None:
    """A client got an answer, or was turned away."""
    if s.next < s.known:
        k = s.next
        s.next += 1
        s.pending = push(pending[0], pending[1], s.pending, now + think[k], k)
