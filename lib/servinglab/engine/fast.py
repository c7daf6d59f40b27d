"""The engines of `protocol`, compiled: each holds the memory of a kernel, and speaks for it.

It serves the requests of a workload, each at its own instant, or those that `join` one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, ClassVar

import numpy as np

from servinglab.engine.clock import Progress
from servinglab.engine.columns import ROOM, Log, Requests, kept, longer, put
from servinglab.engine.limits import LAST_INSTANT_S, check_end, check_scale, longest_step_s, seats_of
from servinglab.engine.protocol import FOREVER, Happened, Request, View, check_changed, check_request
from servinglab.result.log import Segments
from servinglab.result.result import Result
from servinglab.result.setup import RunSetup
from servinglab.result.token_log import TokenSegments
from servinglab.scheduling.blocks import HasBlocks, prefix_keys
from servinglab.scheduling.schedulers import ContinuousBatching, DynamicBatching
from servinglab.scheduling.vllm_rules import PagedScheduler
from servinglab.step_time.affine import ClosedForm, StepTime, asked_ns, told_pairs
from servinglab.workload.model import PREFIX_TOKENS, Workload
from servinglab.workload.outcomes import NEVER, Status

_LOG_ROWS = 1 << 16  # rows of the log between two reports of progress


class FastEngine:
    """What the compiled engines have in common.

    Parameters
    ----------
    scheduler, step_time
        As `servinglab.simulate` takes them.
    workload : Workload or None
        Who comes. None: whoever joins.
    lists_finished : bool
        Whether `advance` says who has finished.
    """

    kernel: Any
    counts_tokens: ClassVar[bool] = True
    columns: ClassVar[dict[str, Any]]
    """The memory's columns of requests, and what they hold of one who isn't known."""

    def __init__(self, scheduler: Any, step_time: StepTime, workload: Workload | None, lists_finished: bool) -> None:
        self.scheduler, self.step_time, self.workload = scheduler, step_time, workload
        self.requests = Requests(workload, lists_finished)
        self.rejections: dict[int, str] = {}
        self.memory: Any = None
        self._numbers: list[int] = []  # of those who joined
        self._gone: set[int] = set()
        self._told = 0  # of those who finished
        self._longest: tuple[int, int, float] = (0, 0, 1.0)  # prompt, answer and scale of those who joined

    def join(self, request: Request, now_ns: int) -> str | None:
        """A request comes; see `Engine`."""
        if self.workload is not None:
            raise ValueError("join needs an engine without a workload: this one's requests come by themselves")
        if request.key is not None:
            raise ValueError("key must be None where the engine is compiled: it asks prefix_ids; got a callable")
        if self._numbers and request.number <= self._numbers[-1]:
            raise ValueError(f"number must be larger than {self._numbers[-1]}, the last one's; got {request.number}")
        self._check_request(request)
        self._pass(self._instant(now_ns))
        reason = self.why_never(request.prompt_tokens, request.output_tokens)
        if reason is not None:
            self.rejections[request.number] = reason
            return reason
        r = len(self._numbers)
        if r == len(self.memory.arrival):
            more = {name: longer(getattr(self.memory, name), 2 * r, fill) for name, fill in self.columns.items()}
            self.memory = self.memory._replace(**more)
        self.memory.arrival[r] = now_ns
        self._take_in(r, request)
        self._numbers.append(request.number)
        self.memory.state["known"] += 1
        self._pass(now_ns)
        return None

    def abort(self, number: int, now_ns: int) -> None:
        """A request is given up; see `Engine`."""
        self._pass(self._instant(now_ns), begins=True)
        r = self._row(number)
        m = self.memory
        if r is None or r in self._gone or not 0 <= m.arrival[r] <= now_ns or m.finish[r] != NEVER:
            raise ValueError(f"number must be that of a request that is here and isn't done; got {number}")
        self._give_up(r)
        self._gone.add(r)

    def change(self, scheduler: Any, now_ns: int) -> None:
        """Settings change; see `Engine`."""
        scheduler = check_changed(self.scheduler, scheduler, self.counts_tokens)
        self._check_longest_step(scheduler)
        self._pass(self._instant(now_ns))
        self._follow(scheduler)
        self.scheduler = scheduler
        self._pass(now_ns)

    def close(self, now_ns: int) -> None:
        """Nobody else will come; see `Engine`."""
        self._pass(self._instant(now_ns))

    def advance(self, until_ns: int) -> Happened:
        """Let time pass; see `Engine`."""
        self._pass(until_ns if until_ns == FOREVER else self._instant(until_ns))
        before, self._told = self._told, int(self.memory.state["answered"][0])
        finished = self.memory.answered[before : self._told].tolist()
        return Happened(finished if self.workload is not None else [self._numbers[r] for r in finished])

    def next_ns(self) -> int | None:
        """When something happens next; see `Engine`."""
        self._pass(self.now_ns, begins=True)
        at = self.kernel.next_ns(self.memory)
        return None if at == FOREVER else int(at)

    def view(self) -> View:
        """What can be seen at the present instant."""
        running, waiting, kv, blocks, tokens, done, preemptions = self.kernel.view(self.memory)
        return View(self.now_ns, running, waiting, kv, blocks, tokens, done + self._unseen, preemptions)

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return int(self.memory.state["present_ns"][0])

    def run(self, progress: Progress | None) -> None:
        """Let all time pass, and say now and then how far it is."""
        self._pass(FOREVER, progress=progress)

    def result(self, setup: RunSetup) -> Result:
        """What has become of everyone so far; who was given up is ABORTED."""
        n, outcome = self._count, self._outcome()
        finish = np.maximum(outcome.finish[:n], NEVER) if self._gone else outcome.finish[:n]
        status = (finish == NEVER).astype(np.uint8) * np.uint8(Status.UNSERVED)  # else FINISHED, which is 0
        rejected = {}
        if self.workload is not None:
            rejected = {i: reason for i, reason in self.rejections.items() if outcome.arrival[i] != NEVER}
            status[list(rejected)] = Status.REJECTED
        status[[self._place(r) for r in self._gone]] = Status.ABORTED
        prompt, output = self._lengths()
        return Result(
            arrival_ns=outcome.arrival[:n],
            scheduled_ns=outcome.scheduled[:n],
            first_token_ns=outcome.first_token[:n],
            finish_ns=finish,
            prompt_tokens=prompt[:n],
            output_tokens=output[:n],
            status=status,
            step_time=self.step_time,
            setup=setup,
            rejections=rejected,
            **(self.workload.optional if self.workload is not None else {}),
            **self._facts(),
        )

    # ---- what each does in its own way ----

    def why_never(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why such a request can never be served to its end; None if it can."""
        return None

    def _call(self, until_ns: int, begins: bool) -> None:
        """Let the kernel serve on, and keep what it logs."""
        raise NotImplementedError

    def _take_in(self, r: int, request: Request) -> None:
        """Write a request that joins to its row."""
        raise NotImplementedError

    def _give_up(self, r: int) -> None:
        """Have the kernel give a request up."""
        self.kernel.abort(self.memory, r)

    def _follow(self, scheduler: Any) -> None:
        """Have the kernel follow changed settings."""
        raise NotImplementedError

    def _facts(self) -> dict[str, Any]:
        """The result's other columns."""
        raise NotImplementedError

    def _outcome(self) -> Any:
        """Where the columns of what became of everyone are."""
        return self.memory

    def _lengths(self) -> tuple[np.ndarray, np.ndarray]:
        return self.memory.prompt, self.memory.output

    # ---- shared ----

    @property
    def _count(self) -> int:
        """Requests known."""
        return len(self._numbers) if self.workload is None else len(self.workload)

    @property
    def _unseen(self) -> int:
        """Requests turned away of whom the kernel doesn't know."""
        return len(self.rejections) if self.workload is None else 0

    def _place(self, r: int) -> int:
        """Where a row of the columns stands in the outcome."""
        return r

    def _row(self, number: int) -> int | None:
        """Where a request stands in the columns."""
        if self.workload is not None:
            return number if 0 <= number < len(self.workload) and number not in self.rejections else None
        r = bisect_left(self._numbers, number)
        return r if r < len(self._numbers) and self._numbers[r] == number else None

    def _instant(self, now_ns: int) -> int:
        if not self.now_ns <= now_ns <= LAST_INSTANT_S * 1e9:
            raise ValueError(f"an instant must be from {self.now_ns} to {LAST_INSTANT_S * 1e9:g} ns; got {now_ns}")
        return now_ns

    def _pass(self, until_ns: int, begins: bool = False, progress: Progress | None = None) -> None:
        state = self.memory.state
        reached = False
        while not reached:
            self._call(until_ns, begins)
            reached = bool(state["reached"][0])
            if progress is not None:
                progress(int(state["done"][0]) + self._unseen, self._count)

    def _check_request(self, request: Request) -> None:
        """Refuse a request that breaks a rule, or with which a step might overflow the clock."""
        check_request(request, self.counts_tokens)
        mine = (request.prompt_tokens, request.output_tokens, request.service_scale)
        longest = tuple(map(max, self._longest, mine))
        if longest != self._longest:
            self._longest = longest  # type: ignore[assignment]
            self._check_longest_step(self.scheduler)

    def _check_longest_step(self, scheduler: Any) -> None:
        if isinstance(self.step_time, ClosedForm) and self.workload is None:
            longest_step_s(scheduler, seats_of(scheduler), self.step_time, *self._longest)


class FastPots(FastEngine):
    """Pots that share a line, with no limit but seats.

    Parameters
    ----------
    scheduler : StaticBatching, DynamicBatching or ContinuousBatching
    step_time : AffineStep or RoofStep
    pots : int or None
    workload : Workload, optional
    lists_finished : bool
    """

    counts_tokens = False
    columns: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("arrival", "scheduled", "first_token", "finish"), NEVER),
        **dict.fromkeys(("prompt", "output", "scale", "answered", "order", "after", "leaves"), 0),
    }

    def __init__(
        self,
        scheduler: Any,
        step_time: ClosedForm,
        pots: int | None,
        workload: Workload | None = None,
        lists_finished: bool = True,
    ) -> None:
        from servinglab.engine.kernel import pots as kernel
        from servinglab.engine.kernel.prices import two_sides
        from servinglab.result.packed_log import LOG

        super().__init__(scheduler, step_time, workload, lists_finished)
        self.kernel, self._pots = kernel, pots
        requests = self.requests
        n = len(requests.arrival)
        count = n if pots is None else pots if workload is None else min(pots, n)
        self._log = Log(LOG, 5 * n // 2, _LOG_ROWS)
        rules, state, pot = np.zeros(1, kernel.RULES), np.zeros(1, kernel.STATE), np.zeros(count, kernel.POT)
        rules["clients"], rules["completes"] = requests.clients, scheduler.run_to_completion
        rules["streaming"], rules["padded"] = scheduler.streaming, getattr(scheduler, "padded", False)
        rules["full_price"] = getattr(scheduler, "last", "") == "full_price"
        rules["cooks_last"] = getattr(scheduler, "last", "") != "never"
        rules["scaled"] = (requests.scale != 1.0).any()
        state["known"], state["more_to_come"] = requests.known, workload is None
        state["next"] = state["pending"] = requests.sent
        state["closed_ns"] = pot["end_ns"] = NEVER
        self.memory = kernel.Memory(
            rules=rules, state=state, sides=two_sides(step_time.sides_fs), pending=requests.pending, pot=pot,
            **{name: getattr(requests, name) for name in (
                "arrival", "prompt", "output", "scale", "think", "scheduled", "first_token", "finish", "answered",
            )},
            **{name: np.zeros(n, np.int64) for name in ("order", "after", "leaves")},
            **{name: np.zeros(count, np.int64) for name in ("ends", "place", "ready", "begun")},
            freed=np.zeros((2, count), np.int64),
        )  # fmt: skip
        self._set_rules(scheduler)

    def close(self, now_ns: int) -> None:
        """Nobody else will come; see `Engine`."""
        super().close(now_ns)
        self.memory.state["more_to_come"], self.memory.state["open"] = 0, 1

    def _call(self, until_ns: int, begins: bool) -> None:
        state = self.memory.state
        self.kernel.advance(self.memory, self._log.buffer, until_ns, begins)
        self._log.keep(int(state["rows"][0]), at_least=int(state["busy"][0]) + 1)

    def _take_in(self, r: int, request: Request) -> None:
        m = self.memory
        count, size = len(m.pot), len(m.arrival)
        if self._pots is None and count < size:
            names = ("pot", "ends", "place", "ready", "begun", "freed")
            m = self.memory = m._replace(**{name: longer(getattr(m, name), size, 0) for name in names})
            m.pot["end_ns"][count:] = NEVER
        put(m.prompt, r, request.prompt_tokens)
        put(m.output, r, request.output_tokens)
        put(m.scale, r, request.service_scale)
        m.rules["scaled"] |= request.service_scale != 1.0

    def _check_request(self, request: Request) -> None:
        assert isinstance(self.step_time, ClosedForm)
        check_scale(self.step_time, request.service_scale)
        super()._check_request(request)

    def _follow(self, scheduler: Any) -> None:
        self._set_rules(scheduler)
        self.kernel.reopen(self.memory)

    def _set_rules(self, scheduler: Any) -> None:
        rules = self.memory.rules
        rules["seats"] = seats_of(scheduler)
        rules["window_ns"] = scheduler.window_ns if isinstance(scheduler, DynamicBatching) else NEVER

    def _facts(self) -> dict[str, Any]:
        return dict(
            segments=self._log.segments(self.memory.state["waited_ns"][0]),
            streaming=self.scheduler.streaming,
            pots=self._pots,
            preemptions=self.requests.preemptions if self.workload is not None else np.zeros(self._count, np.int32),
        )


class _FastTokens(FastEngine):
    """What the two that count tokens have in common.

    Parameters
    ----------
    scheduler : ContinuousBatching
    step_time : StepTime
    kv : HasBlocks or None
    workload : Workload, optional
    lists_finished : bool
    """

    def __init__(
        self,
        scheduler: ContinuousBatching,
        step_time: StepTime,
        kv: HasBlocks | None,
        workload: Workload | None = None,
        lists_finished: bool = True,
    ) -> None:
        from servinglab.engine.kernel.prices import SIDE, two_sides

        super().__init__(scheduler, step_time, workload, lists_finished)
        self.kernel = self._load_kernel()
        self.pool = PagedScheduler(scheduler, *((kv.usable_blocks, kv.block_size) if kv is not None else ()))
        self.pool.check_start()
        self._kv, self._lists_finished = kv, lists_finished
        n = len(self.requests.arrival)
        self._seats = ROOM if workload is None else min(scheduler.seats, n)
        self._reject = np.zeros(n, np.bool_)
        if workload is not None:
            self.rejections = _turned_away(workload, self.pool)
            self._reject[list(self.rejections)] = True
        self._late = np.empty(max(_LOG_ROWS, 4 * self._seats), np.int64)
        self._late_gaps: list[np.ndarray] = [np.zeros(0, np.int64)]
        sides = two_sides(step_time.sides_fs) if isinstance(step_time, ClosedForm) else np.zeros(2, SIDE)
        names = ("arrival", "think", "scheduled", "first_token", "finish", "preemptions", "pending", "answered")
        rules, state = self._first_settings()
        memory = dict(rules=rules, state=state, sides=sides, **{name: getattr(self.requests, name) for name in names})
        self.memory = self.kernel.Memory(**(memory | self._own_memory(rules, state)))
        self._set_rules(scheduler)

    def _load_kernel(self) -> Any:
        """The module of the kernel, which takes a while to import."""
        raise NotImplementedError

    def _own_memory(self, rules: np.ndarray, state: np.ndarray) -> dict[str, Any]:
        """Write the settings that only this kernel has; what it remembers beside what both do."""
        raise NotImplementedError

    def _first_settings(self) -> tuple[np.ndarray, np.ndarray]:
        """The settings that both kernels have, and a state in which nobody has come yet."""
        rules, state = np.zeros(1, self.kernel.RULES), np.zeros(1, self.kernel.STATE)
        scheduler, pool, requests = self.scheduler, self.pool, self.requests
        rules["clients"], rules["chunked"] = requests.clients, scheduler.chunked_prefill
        rules["full_prompt_gate"], rules["whole_answer"] = scheduler.full_prompt_gate, scheduler.reserve_whole_answer
        rules["num_blocks"], rules["block_size"] = pool.num_blocks, pool.block_size
        rules["limited"] = self._kv is not None
        state["known"] = requests.known
        state["next"] = state["pending"] = requests.sent
        state["closed_ns"] = NEVER
        state["free_blocks"] = pool.num_blocks
        return rules, state

    def why_never(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why such a request can never be served to its end; None if it can."""
        return self.pool.why_never(prompt_tokens, output_tokens)

    def _follow(self, scheduler: Any) -> None:
        self.pool.change(scheduler)
        self._set_rules(scheduler)

    def _set_rules(self, scheduler: ContinuousBatching) -> None:
        rules, wanted = self.memory.rules, scheduler.seats
        if self.workload is not None:
            wanted = min(wanted, len(self.workload))
        if wanted > self._seats:
            self._seats = max(wanted, 2 * self._seats)
            self._more_seats(self._seats)
            self._late = longer(self._late, max(len(self._late), 4 * self._seats))
        rules["seats"], rules["budget"] = wanted, self.pool.budget
        rules["watermark_blocks"] = self.pool.watermark_blocks

    def _more_seats(self, seats: int) -> None:
        """Have room for so many running requests."""
        raise NotImplementedError

    def _keep_late(self) -> None:
        self._late_gaps.append(self._late[: self.memory.state["late"][0]].copy())

    def _facts(self) -> dict[str, Any]:
        return dict(
            segments=self._segments(),
            preemptions=self._outcome().preemptions[: self._count],
            late_gaps=np.unique(np.concatenate(self._late_gaps), return_counts=True),
        )

    def _segments(self) -> Segments:
        raise NotImplementedError


class FastStretches(_FastTokens):
    """One pot with a budget of tokens and a pool of blocks, in stretches of steps.

    Its scheduler is first come first served, synchronous, without thresholds, prompts first and prefix caching, and its
    step time an AffineStep or a RoofStep.
    """

    columns: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("arrival", "scheduled", "first_token", "finish"), NEVER),
        **dict.fromkeys(("prompt", "output", "reject", "preemptions", "answered", "order"), 0),
    }

    def _load_kernel(self) -> Any:
        from servinglab.engine.kernel import stretches

        return stretches

    def _own_memory(self, rules: np.ndarray, state: np.ndarray) -> dict[str, Any]:
        from servinglab.result import packed_log as log

        kernel, requests, seats, workload = self.kernel, self.requests, self._seats, self.workload
        n = len(requests.arrival)
        keeps_order = requests.clients > 0 or self._lists_finished
        names = ("arrival", "prompt", "output", "scheduled", "first_token", "finish", "preemptions")
        columns = {name: getattr(requests, name) for name in names} | {"reject": self._reject}
        self._leaves_out = bool(self.rejections) and not keeps_order  # nobody notices those who are turned away
        if self._leaves_out:
            columns = {name: kept(column, ~self._reject) for name, column in columns.items()}
            state["known"] = len(columns["arrival"])
        narrow = not self._lists_finished and workload is not None and _fits_narrow(workload, seats, self._kv)
        self._log = Log(log.ROW if narrow else log.WIDE_ROW, 4 * n, _LOG_ROWS)
        self._marks = Log(log.MARK if narrow else log.WIDE_MARK, 2 * n, _LOG_ROWS)
        rules["keeps_order"] = keeps_order
        state["partial"] = state["last"] = NEVER
        seat = np.zeros(seats, kernel.SEAT)
        seat["after"] = np.append(np.arange(1, seats), NEVER)
        longest = ROOM if workload is None else int(workload.output_tokens.max())
        return columns | dict(
            step=np.zeros(1, kernel.STEP), seat=seat, stack=np.zeros(seats, kernel.PREEMPTED),
            order=np.zeros(n if keeps_order else 1, np.int64), need=np.zeros(self.pool.block_size, np.int64),
            wheel=np.full(1 << longest.bit_length(), NEVER, np.int64),  # longer than any answer
        )  # fmt: skip

    @property
    def _unseen(self) -> int:
        return len(self.rejections) if self.workload is None or self._leaves_out else 0

    def _call(self, until_ns: int, begins: bool) -> None:
        self.kernel.advance(self.memory, self._log.buffer, self._marks.buffer, self._late, until_ns, begins)
        self._keep()

    def _keep(self) -> None:
        state = self.memory.state
        self._log.keep(int(state["rows"][0]))
        self._marks.keep(int(state["marks"][0]))
        self._keep_late()

    def _take_in(self, r: int, request: Request) -> None:
        m = self.memory
        if request.output_tokens >= len(m.wheel):
            m = self.memory = m._replace(wheel=self._longer_wheel(request.output_tokens))
        put(m.prompt, r, request.prompt_tokens)
        put(m.output, r, request.output_tokens)
        self.kernel.cut(m, True)

    def _longer_wheel(self, answer: int) -> np.ndarray:
        """The wheel, longer than this answer: each of its lists is of seats that end together."""
        old, seat = self.memory.wheel, self.memory.seat
        wheel = np.full(1 << answer.bit_length(), NEVER, np.int64)
        for q in old[old >= 0]:
            wheel[seat["ends"][q] & (len(wheel) - 1)] = q
        return wheel

    def _more_seats(self, seats: int) -> None:
        m = self.memory
        before, spare = len(m.seat), m.state["spare"][0]
        seat = longer(m.seat, seats)
        seat["after"][before:] = np.append(np.arange(before + 1, seats), spare)
        m.state["spare"] = before
        self.memory = m._replace(seat=seat, stack=longer(m.stack, seats))

    def _follow(self, scheduler: Any) -> None:
        self.kernel.cut(self.memory, False)
        super()._follow(scheduler)

    def _give_up(self, r: int) -> None:
        self.kernel.split(self.memory, self._log.buffer, self._marks.buffer, self._late)
        self._keep()
        self.kernel.abort(self.memory, r)

    def _row(self, number: int) -> int | None:
        r = super()._row(number)
        return r - int(self._reject[:r].sum()) if r is not None and self._leaves_out else r

    def _place(self, r: int) -> int:
        return int(np.flatnonzero(~self._reject)[r]) if self._leaves_out else r

    def _outcome(self) -> Any:
        if not self._leaves_out:
            return self.memory
        for name in ("scheduled", "first_token", "finish", "preemptions"):
            getattr(self.requests, name)[~self._reject] = getattr(self.memory, name)
        return self.requests

    def _lengths(self) -> tuple[np.ndarray, np.ndarray]:
        where = self.memory if self.workload is None else self.requests
        return where.prompt, where.output

    def _segments(self) -> Segments:
        n = self._count
        waited_s = float(self.memory.state["waited_ns"][0]) / 1e9
        reject = self.memory.reject if self.workload is None else self._reject
        return TokenSegments(self._log.rows, self._marks.rows, waited_s, self._outcome().arrival[:n], reject[:n])


class FastSteps(_FastTokens):
    """One pot under all rules of `servinglab.scheduling.vllm_rules`, or with a step time of one's own, step by step."""

    columns: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("arrival", "scheduled", "first_token", "finish"), NEVER),
        **dict.fromkeys(("preemptions", "answered", "line", "request", "cached"), 0),
    }

    def _load_kernel(self) -> Any:
        from servinglab.engine.kernel import steps

        return steps

    def _own_memory(self, rules: np.ndarray, state: np.ndarray) -> dict[str, Any]:
        from servinglab.result.packed_log import LOG

        kernel, scheduler, seats, n = self.kernel, self.scheduler, self._seats, len(self.requests.arrival)
        self._log = Log(LOG, 5 * n // 2, _LOG_ROWS)
        rules["threshold"], rules["adaptive"] = scheduler.long_prefill_token_threshold, scheduler.adaptive_threshold
        rules["by_priority"], rules["prompts_first"] = scheduler.policy == "priority", scheduler.prefill_first
        rules["longest"], rules["caching"] = self.pool.longest, scheduler.prefix_caching
        rules["asynchronous"], rules["per_piece"] = scheduler.async_scheduling, 1
        rules["asks"] = not isinstance(self.step_time, ClosedForm)
        self._ask = told_pairs(self.step_time)
        state["came_ns"], state["fresh"] = NEVER, 1
        self._places: dict[int, int] = {}  # in the store, of what the pieces of prompts hold
        self._stored, self._blocks_in_all = 1, 0  # of those who joined
        request, cached = np.zeros(n, kernel.REQUEST), np.zeros(n if scheduler.prefix_caching else 0, kernel.CACHED)
        request["last_ns"] = NEVER
        store, block = np.zeros(1, np.int64), np.zeros(1, kernel.BLOCK)
        if self.workload is not None:
            request["prompt"], request["priority"] = self.workload.prompt_tokens, self.workload.priority
            request["output"] = np.where(self._reject, 0, self.workload.output_tokens)
            if scheduler.prefix_caching:
                store, block = self._store(self.workload, rules, cached)
        return dict(
            request=request, cached=cached, store=store, block=block,
            line=np.zeros((2, n), np.int64), running=np.zeros(seats, np.int64),
            step=np.zeros(2, kernel.STEP), chunk=np.zeros((2, seats), kernel.CHUNK),
        )  # fmt: skip

    def _store(self, workload: Workload, rules: np.ndarray, cached: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lay out for prefix caching where the blocks of each request, the pieces of each and all contents stand."""
        size = self.pool.block_size
        blocks = np.where(self._reject, 0, -(-(workload.prompt_tokens + workload.output_tokens) // size))
        total, pieces, shared, per_piece = int(blocks.sum()), np.zeros(0, np.int64), 0, 1
        if workload.prefix_hashes is not None:
            per_piece = self._blocks_of_a_piece(rules, workload.prefix_hashes[0])
            cached["pieces"] = [len(ids) for ids in workload.prefix_hashes]
            distinct, pieces = np.unique(np.concatenate(workload.prefix_hashes), return_inverse=True)
            shared = len(distinct) * per_piece
        contents = total + len(pieces)
        cached["block_at"] = np.cumsum(blocks) - blocks
        cached["piece_at"] = total + np.cumsum(cached["pieces"]) - cached["pieces"]
        cached["own_at"] = contents + shared + cached["block_at"]
        store = np.zeros(contents + shared + total + 1, np.int64)
        store[total:contents] = contents + pieces * per_piece
        return store, np.zeros(min(self.pool.num_blocks, total) + 1, self.kernel.BLOCK)

    def _blocks_of_a_piece(self, rules: np.ndarray, prefix_ids: Any) -> int:
        prefix_keys(0, prefix_ids, PREFIX_TOKENS, self.pool.block_size)  # refuses pieces of part blocks
        rules["per_piece"] = per_piece = PREFIX_TOKENS // self.pool.block_size
        return per_piece

    def _store_one(self, r: int, request: Request) -> None:
        """As `_store`, for one who joins."""
        per_piece = self._blocks_of_a_piece(self.memory.rules, request.prefix_ids) if request.prefix_ids else 1
        blocks = -(-(request.prompt_tokens + request.output_tokens) // self.pool.block_size)
        pieces = len(request.prefix_ids)
        new = [i for i in dict.fromkeys(request.prefix_ids) if i not in self._places]
        at, m = self._stored, self.memory
        self._stored += 2 * blocks + pieces + per_piece * len(new)
        self._blocks_in_all += blocks
        store, block = m.store, m.block
        if self._stored > len(store):
            store = longer(store, 2 * self._stored)
        most = min(self.pool.num_blocks, self._blocks_in_all) + 1
        if most > len(block):
            block = longer(block, most)
        for i, each in enumerate(new):
            self._places[each] = at + 2 * blocks + pieces + i * per_piece
        cached = m.cached[r]
        cached["block_at"], cached["piece_at"], cached["own_at"] = at, at + blocks, at + blocks + pieces
        cached["pieces"], cached["kept"] = pieces, 0
        store[at + blocks : at + blocks + pieces] = [self._places[i] for i in request.prefix_ids]
        self.memory = m._replace(store=store, block=block)

    def _call(self, until_ns: int, begins: bool) -> None:
        state = self.memory.state
        while True:
            self.kernel.advance(self.memory, self._log.buffer, self._late, until_ns, begins)
            asking = state["asking"][0]
            if not asking:
                break
            self._price(self.memory.step[asking - 1])
        self._keep()

    def _keep(self) -> None:
        self._log.keep(int(self.memory.state["rows"][0]))
        self._keep_late()

    def _price(self, step: np.void) -> None:
        """Tell the kernel how long the step takes that it has decided on."""
        start, _, chunks, _, _, prefill, _, _, kv, pairs, *_ = step.item()
        self.memory.state["lasts_ns"][0] = lasts = asked_ns(self._ask, chunks, prefill, kv, pairs)
        check_end((start + lasts) / 1e9)

    def result(self, setup: RunSetup) -> Result:
        """What has become of everyone so far; who was given up is ABORTED."""
        if self.memory.state["asking"][0]:  # interrupted within a step
            self._keep()
        return super().result(setup)

    def _take_in(self, r: int, request: Request) -> None:
        m = self.memory
        row = m.request[r]
        row["prompt"], row["output"], row["priority"] = request.prompt_tokens, request.output_tokens, request.priority
        row["last_ns"] = NEVER
        if self.scheduler.prefix_caching:
            self._store_one(r, request)

    def _more_seats(self, seats: int) -> None:
        m = self.memory
        self.memory = m._replace(running=longer(m.running, seats), chunk=longer(m.chunk, seats))

    def _lengths(self) -> tuple[np.ndarray, np.ndarray]:
        if self.workload is not None:
            return self.workload.prompt_tokens, self.workload.output_tokens
        n = self._count
        return self.memory.request["prompt"][:n].copy(), self.memory.request["output"][:n].copy()

    def _segments(self) -> Segments:
        state, under_way = self.memory.state, self.memory.step
        return self._log.segments(float(state["waited_ns"][0] + under_way["waited_ns"].sum()))


def _fits_narrow(workload: Workload, seats: int, kv: HasBlocks | None) -> bool:
    """Whether every count of a run is sure to fit the columns of the kernel's narrow log."""
    tokens = seats * (int(workload.prompt_tokens.max()) + int(workload.output_tokens.max()))
    blocks = 0
    if kv is not None:
        blocks, tokens = kv.usable_blocks, min(tokens, kv.usable_blocks * kv.block_size)
    return seats < 2**16 and max(len(workload), tokens, blocks) < 2**31


def _turned_away(workload: Workload, pool: PagedScheduler) -> dict[int, str]:
    """Why some requests can never be served, by number."""
    prompts, outputs = workload.prompt_tokens, workload.output_tokens
    return {
        int(i): reason
        for i in np.flatnonzero(prompts + outputs > pool.largest_request)
        if (reason := pool.why_never(int(prompts[i]), int(outputs[i]))) is not None
    }
