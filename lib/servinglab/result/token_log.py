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

from servinglab.base.arrays import Floats, Ints
from servinglab.result.log import BLOCK, Segments
from servinglab.workload.outcomes import NEVER


class TokenSegments(Segments):
    """Segments that are unpacked column by column, each when it's first asked for.

    Parameters
    ----------
    rows, marks : structured arrays
        As `engine.kernel.stretches` writes them.
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
            column = np.concatenate([np.zeros(0, np.int64), *(block.copy() for (block,) in self.blocks(name))])
        column.flags.writeable = False
        self.__dict__[name] = column
        return column

    def __len__(self) -> int:
        return int(np.count_nonzero(self._packed["rows"]["steps"]))

    def blocks(self, *names: str) -> Iterator[tuple[Ints, ...]]:
        """As in `Segments`."""
        from servinglab.result import packed_log as kernel

        rows, marks = self._packed["rows"], self._packed["marks"]
        columns = np.zeros((len(kernel.UNPACKED) + 1, BLOCK), np.int64)  # the last one for the pot, which is 0
        places = {name: place for place, name in enumerate((*kernel.UNPACKED, "pot"))}
        places["running"] = places["charged"]  # whoever has a seat is in every step
        at = np.zeros(3, np.int64)
        while used := kernel.unpack(rows, marks, at, columns[:-1]):
            yield tuple(columns[places[name], :used] for name in names)

    @property
    def packed(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The rows and the marks, as the engine wrote them."""
        return self._packed["rows"], self._packed["marks"]

    @property
    def waited_s(self) -> float:
        """As in `Segments`, but as the engine summed it."""
        return float(self._packed["waited_s"])

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
