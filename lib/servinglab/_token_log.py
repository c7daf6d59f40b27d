"""The log of the fast engine that counts tokens: kept small, unpacked when someone looks.

The kernel writes 20 bytes for each stretch of steps and 14 more where more goes on than decoding. What it leaves out
follows from what it writes: a stretch starts when the one before it ends, and how long the line has waited follows from
its length and the arrivals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .result import NEVER, Floats, Ints, Segments

class TokenSegments(Segments):
    """Segments that are unpacked column by column, each when it's first asked for.

    Parameters
    ----------
    rows, marks : structured arrays
        As `_kernel.run_tokens` writes them.
    waited_s : float
        Request-seconds spent in the line.
    arrival_ns : int64 array
        When each request came; -1 for never.
    rejected : bool array
        Who never joined the line.
    """

    def __init__(
        self,
        rows: npt.NDArray[Any],
        marks: npt.NDArray[Any],
        waited_s: float,
        arrival_ns: Ints,
        rejected: npt.NDArray[np.bool_],
    ) -> None:
        packed = dict(rows=rows, marks=marks, waited_s=waited_s, arrival_ns=arrival_ns, rejected=rejected)
        self.__dict__["_packed"] = packed  # the class is frozen

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__ or "_packed" not in self.__dict__:
            raise AttributeError(name)
        if name == "waited_request_s":
            column = self._waited_s()
        else:
            (column,) = next(self.blocks(name, rows=max(1, len(self._packed["rows"]))), (np.zeros(0, np.int64),))
        column.flags.writeable = False
        self.__dict__[name] = column
        return column

    def __len__(self) -> int:
        return int(np.count_nonzero(self._packed["rows"]["steps"]))

    def blocks(self, *names: str, rows: int = 1 << 15) -> Iterator[tuple[Ints, ...]]:
        """As in `Segments`."""
        packed, marks = self._packed["rows"], self._packed["marks"]
        ended, marked = np.int64(0), 0
        for first in range(0, len(packed), rows):
            part = packed[first : first + rows]
            steps = part["steps"].astype(np.int64)
            going, with_mark = steps != 0, steps < 0
            own = marks[marked : marked + np.count_nonzero(with_mark)]
            columns = []
            for name in names:
                if name == "start_ns":
                    column = np.concatenate([[ended], part["end_ns"][:-1]])
                elif name == "steps":
                    column = np.abs(steps)
                elif name in ("charged", "running"):  # whoever has a seat is in every step
                    column = part["charged"].astype(np.int64)
                elif name in ("end_ns", "kv_tokens", "kv_blocks"):
                    column = part[name].astype(np.int64)
                else:
                    column = np.zeros(len(part), np.int64) if name != "decode_tokens" else part["charged"].astype(np.int64)
                    if name != "pot":
                        column[with_mark] = own[name]
                columns.append(column[going])
            yield tuple(columns)
            ended, marked = part["end_ns"][-1], marked + len(own)

    @property
    def request_seconds(self) -> float:
        """As in `Segments`."""
        return self._in_pots_s() + self._packed["waited_s"]

    def _waited_s(self) -> Floats:
        """From one row's start to the next's: as long as the line was, and each newcomer until the next row starts."""
        start, waiting = self.start_ns, self.waiting
        if not len(start):
            return np.zeros(0)
        times = np.append(start, self._packed["rows"]["end_ns"][-1])
        came = self._packed["arrival_ns"][~self._packed["rejected"]]
        came = came[(came != NEVER) & (came <= times[-1])]
        joined = np.searchsorted(times, came)
        waited_ns = np.bincount(joined, (times[joined] - came).astype(np.float64), len(times))
        waited_ns[1:] += waiting * np.diff(times).astype(np.float64)
        waited_ns[-2] += waited_ns[-1]
        return waited_ns[:-1] / 1e9
