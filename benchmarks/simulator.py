"""How fast is the simulator, beside the same loop written plainly, in SimPy, and in sched-sim?

    python benchmarks/simulator.py            # ratios within this run, on one core
    python benchmarks/simulator.py --quick    # a tenth of the requests

Each case is one pot under continuous batching; the chats have a budget of 2,048 tokens a step and a pool of KV blocks.
Simulator and reference must give the same finish times before their speed counts. "All read" also asks for the
histogram of gaps between tokens and for the summary with limits. Ratios, not seconds, are what to compare between
machines. Times are CPU seconds of this process, the best of three for the simulator.

SimPy and sched-sim (pip install simpy sched-sim) are left out where absent. The SimPy loop charges the same step time
but knows neither budget nor blocks: it does less. sched-sim is a discrete-event simulator of LLM schedulers in plain
Python; its chunked prefill serves a tenth of the other peers' requests here, with our step time, budget and pool. Its
rules differ: it has no cap on sequences and gives one token more. "Stuck": preempted requests never came back.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
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


def simpy_loop(work: sl.Workload, cap: int, step: sl.AffineStep) -> np.ndarray:
    """A batching loop as one would write it in SimPy, without budget and blocks; returns finish times in seconds."""
    import simpy

    env, line, finish = simpy.Environment(), deque(), np.zeros(len(work))
    left, held = work.output_tokens.tolist(), work.prompt_tokens.tolist()
    bell = [env.event()]

    def guests():
        for request, at in enumerate(work.arrival_s):
            yield env.timeout(max(0.0, at - env.now))
            line.append(request)
            if not bell[0].triggered:
                bell[0].succeed()

    def pot():
        members: list[int] = []
        while True:
            new = [line.popleft() for _ in range(min(len(line), cap - len(members)))]
            members += new
            if not members:
                bell[0] = env.event()
                yield bell[0]
                continue
            yield env.timeout(step(len(members), sum(held[r] for r in new), sum(held[r] for r in members)))
            for request in members:
                held[request] += 1
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


def cpu_s(work: Callable[[], object], repeat: int = 3) -> float:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    shrink = 10 if parser.parse_args().quick else 1
    n, slow_n = 1_000_000 // shrink, 10_000 // shrink
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    titles = ("requests / CPU s", "all read", "× reference", "× SimPy", "× sched-sim", "peak B / request", "preempted")
    print(f"{'case':<28}" + "".join(f"{title:>18}" for title in titles))
    for name, (make, scheduler, step, kv) in cases().items():
        few, many = make(slow_n), make(n)
        fast, plain = (serve(few, scheduler, step, kv=kv) for serve in (sl.simulate, sl.reference))
        np.testing.assert_array_equal(fast.finish_ns, plain.finish_ns)
        fast.summary(LIMITS)
        each = cpu_s(lambda a=(many, scheduler, step), kv=kv: sl.simulate(*a, kv=kv)) / n
        read = cpu_s(lambda a=(many, scheduler, step), kv=kv: read_all(sl.simulate(*a, kv=kv))) / n
        slow = cpu_s(lambda a=(few, scheduler, step), kv=kv: sl.reference(*a, kv=kv), 1) / slow_n
        simpy = times(lambda a=(few, scheduler.seats, step): simpy_loop(*a), slow_n, each)
        peer = "no budget"
        if kv is not None:
            fewer = make(slow_n // 10)
            peer = times(lambda a=(fewer, scheduler, step, kv): sched_sim_run(*a), len(fewer), each)
        figures = (f"{1 / each:,.0f}", f"{1 / read:,.0f}", f"{slow / each:,.0f}", simpy, peer)
        memory = f"{peak_bytes(name, n):.0f}" if sys.platform == "linux" else "Linux only"
        preempted = int((sl.simulate(many, scheduler, step, kv=kv).preemptions > 0).sum())
        print(f"{name:<28}" + "".join(f"{x:>18}" for x in (*figures, memory, f"{preempted:,}")), flush=True)


if __name__ == "__main__":
    main()
