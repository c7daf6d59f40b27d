"""What was run: the settings behind a `Result`, for metrics that need them, for titles and for comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class RunSetup:
    """What was run. Everything is optional: a measured run doesn't know all of it.

    Attributes
    ----------
    workload : str or tuple of str
        Its name; of a load test one name a stage.
    scheduler : Scheduler or None
    step_time : StepTime, str or None
        What priced the steps; its text where it came from a file that couldn't hold it.
    pots : int, "endless" or None
    kv : KVCache, Blocks, str or None
        The pool of blocks; None where none is modelled.
    roofline : Roofline or None
        What the step time was made from.
    source : str
        Of a measured run: the engine or the file that it is from. Empty for a simulated one.
    since : {"", "scheduled", "sent"}
        Of a load test: what an arrival is.
    no_itl : str
        Why the gaps between tokens aren't known; empty where they are.
    clock : {"", "wall", "cpu"}
        Which clock an engine's steps were timed by.
    cpu_per_wall : float or None
        CPU seconds per second of an engine's steps.
    interrupted : bool
        Whether the run was broken off.
    facts : mapping
        Anything else that is worth telling, such as an engine's version; nothing is computed from it.

    Examples
    --------
    >>> setup = RunSetup(workload="lunch", pots=1)
    >>> setup.told()
    {'workload': 'lunch', 'pots': 1}
    >>> RunSetup.of({"workload": "lunch", "weather": "rain"}).facts
    {'weather': 'rain'}
    """

    workload: str | tuple[str, ...] = ""
    scheduler: Any = None
    step_time: Any = None
    pots: int | str | None = None
    kv: Any = None
    roofline: Any = None
    source: str = ""
    since: str = ""
    no_itl: str = ""
    clock: str = ""
    cpu_per_wall: float | None = None
    interrupted: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> RunSetup:
        """From `told`'s names and values; a name that isn't a field's becomes one of the facts."""
        known = {each.name for each in fields(cls)} - {"facts"}
        return cls(
            **{name: value for name, value in told.items() if name in known},
            facts={name: value for name, value in told.items() if name not in known},
        )

    def told(self) -> dict[str, Any]:
        """What is known, by name, the facts among them."""
        named = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "facts"}
        return {name: value for name, value in named.items() if value not in ("", None, False)} | dict(self.facts)

    @property
    def usable_blocks(self) -> int | None:
        """The pool's blocks that requests can use; None where no pool is known."""
        return getattr(self.kv, "usable_blocks", None)  # a pool of one's own comes from a file as text

    @property
    def blocks_per_step(self) -> float:
        """By how many blocks a running request grows in a step, on average."""
        block_size = getattr(self.kv, "block_size", None)
        if block_size is None or getattr(self.scheduler, "reserve_whole_answer", False):
            return 0.0
        return 1 / block_size
