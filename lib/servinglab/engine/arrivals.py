"""Who comes next? The workload's own times, or clients who come back after their answer."""

from __future__ import annotations

import heapq
from collections import deque

from servinglab.workload.model import Workload


class Arrivals:
    """The requests that are still to come, in the order of their arrival, in whole nanoseconds."""

    def __init__(self, workload: Workload) -> None:
        self.closed = workload.is_closed
        if self.closed:
            assert workload.think_s is not None
            self.think_ns = [round(s * 1e9) for s in workload.think_s.tolist()]
            first = min(workload.clients, len(workload))
            self.coming = [(self.think_ns[k], k) for k in range(first)]
            self.unsent = deque(range(first, len(workload)))
        else:
            self.coming = [(round(s * 1e9), k) for k, s in enumerate(workload.arrival_s.tolist())]
            self.unsent = deque()
        heapq.heapify(self.coming)

    def next_ns(self) -> int | None:
        """When the next request comes; None if none will unless an answer is given."""
        return self.coming[0][0] if self.coming else None

    def pop(self, now_ns: int) -> list[int]:
        """The requests that come at this instant."""
        came = []
        while self.coming and self.coming[0][0] == now_ns:
            came.append(heapq.heappop(self.coming)[1])
        return came

    def answered(self, now_ns: int) -> None:
        """A client got an answer: it thinks, then sends the next request that nobody has sent."""
        if self.unsent:
            request = self.unsent.popleft()
            heapq.heappush(self.coming, (now_ns + self.think_ns[request], request))
