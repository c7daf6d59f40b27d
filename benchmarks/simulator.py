"""How fast is the simulator, beside the same loop written plainly, in SimPy, and in sched-sim?

    python benchmarks/simulator.py            # ratios within this run, on one core
    python benchmarks/simulator.py --quick    # a tenth of the requests
    python benchmarks/simulator.py --only 0.3 # the cases with this in their names

Each case is one pot under continuous batching; the chats have a budget of 2,048 tokens a step and a pool of KV blocks.
Simulator and reference must give the same finish times before their speed counts. Speed is shown for a million
requests and, in brackets, for 10,000 at a time. "All read" also asks for the histogram of gaps between tokens and for
the summary with limits. Ratios, not seconds, are what to compare between machines. Times are CPU seconds of this
process, the best of five for the simulator.

SimPy and sched-sim (pip install simpy sched-sim) are left out where absent. The SimPy loop knows seats and budget but
no pool: where nobody is preempted it must give the simulator's finish times, and where somebody is, it does less.
sched-sim is a discrete-event simulator of LLM schedulers in plain Python; its chunked prefill serves a tenth of the
other peers' requests here, with our step time, budget and pool. Its rules differ: it has no cap on sequences and gives
one token more. "Stuck": preempted requests never came back.

A second table has what is simulated step by step: other rules, and a step time of one's own, which is asked each time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import servinglab as sl

CAP = 32
STEP = sl.AffineStep(0.4, 0.02)
CHAT_STEP = sl.AffineStep(7e-3, 2e-5, 2e-5, 4e-8)
PROMPT, ANSWER = 200, 100  # mean tokens of a chat
LIMITS = {"ttft_s": 2.0, "tpot_s": 0.1}


def simpy_loop(work: sl.Workload, scheduler: sl.ContinuousBatching, step: sl.AffineStep) -> list[int]:
    """The loop as one would write it in SimPy, with seats and budget but no pool; returns finish times in ns."""
    import simpy

    env, line, finish = simpy.Environment(), deque(), [0] * len(work)
    unread, left, held = work.prompt_tokens.tolist(), work.output_tokens.tolist(), [0] * len(work)
    most = scheduler.max_num_batched_tokens or float("inf")
    bell = [env.event()]

    def guests():
        for request, at in enumerate(np.rint(work.arrival_s * 1e9).astype(int).tolist()):
            yield env.timeout(at - env.now)
            line.append(request)
            if not bell[0].triggered:
                bell[0].succeed()

    def pot():
        members = []
        while True:
            budget, charged, prefill, kv = most, 0, 0, 0
            for request in members:
                tokens = min(unread[request] or 1, budget)
                if not tokens:
                    break
                prefill += tokens if unread[request] else 0
                unread[request] -= tokens if unread[request] else 0
                held[request] += tokens
                charged, budget, kv = charged + 1, budget - tokens, kv + held[request]
            while line and budget and len(members) < scheduler.seats:
                request = line.popleft()
                tokens = min(unread[request], budget)
                members.append(request)
                unread[request], held[request] = unread[request] - tokens, tokens
                charged, budget, prefill, kv = charged + 1, budget - tokens, prefill + tokens, kv + tokens
            if not members:
                bell[0] = env.event()
                yield bell[0]
                continue
            yield env.timeout(step.step_ns(charged, prefill, kv))
            for request in members[:charged]:
                if not unread[request]:
                    left[request] -= 1
                    if not left[request]:
                        finish[request] = env.now
            members = [request for request in members if left[request]]

    env.process(guests())
    env.process(pot())
    env.run()
    return finish


def sched_sim_run(work: sl.Workload, scheduler: sl.ContinuousBatching, step: sl.AffineStep, kv: sl.Blocks) -> None:
    """The same workload in sched-sim, with chunked prefill."""
    from sched_sim.core.event_engine import Simulator
    from sched_sim.core.request import Request
    from sched_sim.hardware.profile import HardwareProfile
    from sched_sim.schedulers.factory import create_scheduler

    hardware = HardwareProfile()
    chunked = create_scheduler("chunked", hardware, token_budget=scheduler.max_num_batched_tokens)
    chunked.block_manager.total_gpu_blocks = kv.usable_blocks
    chunked.block_manager.free_gpu_blocks = list(range(kv.usable_blocks))
    model = chunked.latency_model
    model.compute_prefill_step_time = lambda prompt: step(1, prompt, prompt)
    model.compute_decode_step_time = lambda members, held: step(members, 0, held)
    model.compute_mixed_step_time = lambda prompt, members, held: step(members + 1, prompt, held + prompt)
    columns = (work.arrival_s.tolist(), work.prompt_tokens.tolist(), work.output_tokens.tolist())
    simulator = Simulator(hardware, chunked)
    simulator.submit_workload(
        [
            Request(request_id=str(i), arrived_at=at, prompt_tokens=prompt, output_tokens=output)
            for i, (at, prompt, output) in enumerate(zip(*columns, strict=True))
        ]
    )
    simulator.run(max_duration_s=work.arrival_s[-1] + 100)
    if any(request.completed_at is None for request in simulator.all_requests):
        raise RuntimeError("stuck")


def cpu_s(work: Callable[[], object], repeat: int = 5) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def times(peer: Callable[[], object], requests: int, ours_s: float) -> str:
    """How many times as long a peer takes for a request."""
    try:
        return f"{cpu_s(peer, 1) / requests / ours_s:,.0f}"
    except ImportError:
        return "absent"
    except RuntimeError as error:
        return str(error)


def read_all(result: sl.Result) -> None:
    result.itl()
    result.summary(LIMITS)


def peak_bytes(case: str, n: int) -> float:
    """Resident memory that a run adds at its peak, beside its workload, in a process of its own."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import servinglab as sl
from simulator import cases
make, scheduler, step, kv = cases()[{case!r}]
sl.simulate(make(1000), scheduler, step, kv=kv)
work = make({n})

def kib(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak so far is forgotten
before = kib("VmRSS")
result = sl.simulate(work, scheduler, step, kv=kv)
print((kib("VmHWM") - before) * 1024)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(out.stdout) / n


def cases() -> dict[str, tuple[Callable[[int], sl.Workload], sl.ContinuousBatching, sl.AffineStep, sl.Blocks | None]]:
    """Name → (workload of n requests, scheduler, step time, KV cache)."""
    chat = sl.ContinuousBatching(256, 2048)
    per_request = PROMPT * CHAT_STEP.per_prefill_token_s + ANSWER * (
        CHAT_STEP.fixed_s / 256 + CHAT_STEP.per_request_s + (PROMPT + ANSWER / 2) * CHAT_STEP.per_kv_token_s
    )

    def chats(load: float, prompt: int = PROMPT, answer: int = ANSWER) -> Callable[[int], sl.Workload]:
        rate = load / per_request * PROMPT / prompt
        lengths = dict(prompt_tokens=sl.lengths.Geometric(prompt), output_tokens=sl.lengths.Geometric(answer))
        return lambda n: sl.poisson(rate, n, 1, **lengths)

    return {
        "kitchen orders, ρ = 0.8": (lambda n: sl.poisson(25.0, n, 1), sl.ContinuousBatching(CAP), STEP, None),
        "chats, ρ = 0.3": (chats(0.3), chat, CHAT_STEP, sl.Blocks(8192)),
        "chats, ρ = 0.9": (chats(0.9), chat, CHAT_STEP, sl.Blocks(8192)),
        "chats, ρ = 1.5": (chats(1.5), chat, CHAT_STEP, sl.Blocks(8192)),
        "chats, ρ = 0.9, preempting": (chats(0.9), chat, CHAT_STEP, sl.Blocks(3000)),
        "1,800 in, 300 out": (chats(0.9, 1800, 300), chat, CHAT_STEP, sl.Blocks(40_000)),
    }


def step_by_step() -> dict[str, tuple[sl.ContinuousBatching, Callable[[int, int, int], float], int]]:
    """Name → (scheduler, step time, requests) of chats at ρ = 0.9 that stretches of steps have no closed form for."""
    rules = {"priority": {"policy": "priority"}, "prompts first": {"prefill_first": True}}
    rules |= {name: {name: True} for name in ("prefix_caching", "async_scheduling")}
    table = {name: (sl.ContinuousBatching(256, 2048, **more), CHAT_STEP, 100_000) for name, more in rules.items()}
    return table | {"own step time": (sl.ContinuousBatching(256, 2048), lambda *holds: CHAT_STEP(*holds), 10_000)}


def against_reference(
    many: sl.Workload, few: sl.Workload, scheduler: sl.ContinuousBatching, step: Callable[..., float], kv: sl.Blocks
) -> tuple[float, float]:
    """Requests per CPU second, and how many times as long the reference takes for one."""

    def serve(engine: Callable[..., sl.Result], work: sl.Workload) -> sl.Result:
        return engine(work, scheduler, step, kv=kv)

    np.testing.assert_array_equal(*(serve(engine, few).finish_ns for engine in (sl.simulate, sl.reference)))
    each = cpu_s(lambda: serve(sl.simulate, many), 3) / len(many)
    return 1 / each, cpu_s(lambda: serve(sl.reference, few), 1) / len(few) / each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    parser.add_argument("--only", default="", help="the cases with this in their names")
    options = parser.parse_args()
    shrink = 10 if options.quick else 1
    n, slow_n = 1_000_000 // shrink, 10_000 // shrink
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    titles = ("requests / CPU s", "all read", "× reference", "× SimPy", "× sched-sim", "peak B / request", "preempted")
    print(f"{'case':<28}{titles[0]:>24}" + "".join(f"{title:>18}" for title in titles[1:]))
    for name, (make, scheduler, step, kv) in cases().items():
        if options.only not in name:
            continue
        few, many = make(slow_n), make(n)
        fast, plain = (serve(few, scheduler, step, kv=kv) for serve in (sl.simulate, sl.reference))
        np.testing.assert_array_equal(fast.finish_ns, plain.finish_ns)
        fast.summary(LIMITS)

        def ours(work=many, rules=(scheduler, step), kv=kv):
            return sl.simulate(work, *rules, kv=kv)

        def in_simpy(few=few, fast=fast, scheduler=scheduler, step=step):
            finish_ns = simpy_loop(few, scheduler, step)
            if not fast.preemptions.any():
                np.testing.assert_array_equal(fast.finish_ns, finish_ns)

        each = cpu_s(ours) / n
        at_once = cpu_s(lambda few=few, ours=ours: ours(few), 20) / slow_n
        read = cpu_s(lambda ours=ours: read_all(ours())) / n
        slow = cpu_s(lambda a=(few, scheduler, step), kv=kv: sl.reference(*a, kv=kv), 1) / slow_n
        peer = "no budget"
        if kv is not None:
            fewer = make(slow_n // 10)
            peer = times(lambda a=(fewer, scheduler, step, kv): sched_sim_run(*a), len(fewer), each)
        figures = (f"{1 / read:,.0f}", f"{slow / each:,.0f}", times(in_simpy, slow_n, each), peer)
        memory = f"{peak_bytes(name, n):.0f}" if sys.platform == "linux" else "Linux only"
        preempted = f"{int((ours().preemptions > 0).sum()):,}"
        speed = f"{1 / each:,.0f} ({1 / at_once:,.0f})"
        print(f"{name:<28}{speed:>24}" + "".join(f"{x:>18}" for x in (*figures, memory, preempted)), flush=True)

    make, _, _, kv = cases()["chats, ρ = 0.9"]
    warnings.filterwarnings("ignore", "simulated step by step")
    print(f"\n{'step by step, ρ = 0.9':<28}{titles[0]:>24}{titles[2]:>18}")
    for name, (scheduler, step, n) in step_by_step().items():
        if options.only not in name:
            continue
        speed, ratio = against_reference(make(n // shrink), make(2000), scheduler, step, kv)
        print(f"{name:<28}{speed:>24,.0f}{ratio:>18,.0f}", flush=True)


if __name__ == "__main__":
    main()
