"""A real engine whose steps are taken by hand serves a workload, and what it did is a `Result` like a simulated one.

The simulator's own loop decides what each step holds, has the engine take its next step, and lets as much time pass as
that step took. So time passes only while the engine computes: arrivals come on the clock that the steps make, nobody
sleeps through a quiet hour, and neither this program nor the client's network is in any latency.

Requests wait in front of the engine until one of its seats is free. From there on the engine decides for itself what
its steps hold, how prompts are cut and who gets a token. After each step it is asked how many requests it scheduled
and who got a token; where that isn't what the scheduler's rules say, the run stops and says so (`EngineDiffers`). What
a step held, prompt tokens above all, is therefore known, though engines don't tell.

What this leaves out: everything between the steps of a live server, and engines that run steps ahead of their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from servinglab.base.checks import check_choice
from servinglab.engine.reference.tokens import TokenLoop, holdings, serve_loop
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.scheduling.blocks import HasBlocks
from servinglab.scheduling.schedulers import ContinuousBatching
from servinglab.scheduling.vllm_rules import Step
from servinglab.step_time.affine import asked_ns
from servinglab.workload.model import Workload

CLOCKS = ("wall", "cpu")


@dataclass(frozen=True)
class Taken:
    """One step that an engine took.

    Attributes
    ----------
    wall_s, cpu_s : float
        By the clock on the wall; CPU time of the whole process, all threads together.
    scheduled : int
        Requests that the step computed something of.
    gave : mapping of int to int
        Tokens that came out, by the request's number.
    """

    wall_s: float
    cpu_s: float
    scheduled: int
    gave: Mapping[int, int]


class SteppedEngine(Protocol):
    """What is asked of an engine."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What it is: names, versions, threads, settings; plain data."""
        ...

    @property
    def scheduler(self) -> ContinuousBatching:
        """The rules that it schedules by."""
        ...

    @property
    def kv(self) -> HasBlocks:
        """Its pool of blocks."""
        ...

    def add(self, number: int, prompt_tokens: int, output_tokens: int) -> None:
        """A request takes a seat; it must get exactly `output_tokens` tokens."""
        ...

    def step(self) -> Taken:
        """Take one step."""
        ...


class EngineDiffers(ValueError):
    """The engine formed a step otherwise than the scheduler's rules say."""


class _EngineLoop(TokenLoop):
    """The simulator's loop, whose steps last as long as the engine's."""

    def __init__(self, engine: SteppedEngine, clock: str) -> None:
        super().__init__(engine.scheduler, lambda *_: 0.0, engine.kv)
        self.taken = 0
        self.wall_s = self.cpu_s = 0.0
        self._engine, self._clock = engine, clock
        self._seated: set[int] = set()

    def _price(self, step: Step) -> tuple[int, dict[str, int]]:
        """Seat who is new in this step, and have the engine take it."""
        for chunk in step.chunks:
            new = chunk.sequence
            if new.number not in self._seated:
                self._seated.add(new.number)
                self._engine.add(new.number, new.prompt_tokens, new.output_tokens)
        taken = self._engine.step()
        expected = {chunk.sequence.number: 1 for chunk in step.chunks if chunk.emits}
        if taken.scheduled != len(step.chunks) or dict(taken.gave) != expected:
            raise EngineDiffers(
                f"step {self.taken}: by its rules the engine computes {len(step.chunks)} requests and gives tokens to "
                f"{sorted(expected)}; it computed {taken.scheduled} and gave {dict(sorted(taken.gave.items()))}"
            )
        self.taken += 1
        self.wall_s += taken.wall_s
        self.cpu_s += taken.cpu_s
        seconds = taken.wall_s if self._clock == "wall" else taken.cpu_s
        return asked_ns(lambda *_: seconds, 1), holdings(step)


def serve_stepped(
    workload: Workload,
    engine: SteppedEngine,
    clock: str = "wall",
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Serve a workload on a real engine, step by step.

    Parameters
    ----------
    workload : Workload
        Prompts and answers of at least one token each.
    engine : SteppedEngine
        Idle: nothing of an earlier run is in it.
    clock : {"wall", "cpu"}
        Which clock a step is timed by. CPU time leaves out what other programs take from a shared machine; it is the
        step's time only where one thread computes.

    Returns
    -------
    Result
        With a log of steps; `Result.setup` holds the engine's facts, the scheduler, and ``cpu_per_wall``: CPU
        seconds per second of the steps, which is near the number of computing threads on a quiet machine and lower on
        a busy one.

    Raises
    ------
    EngineDiffers
        If a step isn't what the engine's rules say.
    SimulationInterrupted
        On Ctrl-C, with what was done. The engine then isn't idle.
    """
    loop = _EngineLoop(engine, check_choice("clock", clock, CLOCKS))
    setup = RunSetup(
        workload=workload.name,
        scheduler=engine.scheduler,
        kv=engine.kv,
        source=str(engine.facts["engine"]),
        clock=clock,
        facts={"engine": dict(engine.facts)},
    )
    result = serve_loop(loop, workload, progress, None, setup)
    if result.rejections:
        number, reason = next(iter(result.rejections.items()))
        raise ValueError(f"request {number} can never be served: {reason}")
    return replace(result, setup=replace(setup, cpu_per_wall=loop.cpu_s / loop.wall_s))
