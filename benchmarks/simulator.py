"""How fast is the simulator, beside the same loop written plainly and in SimPy?

    python benchmarks/simulator.py            # ratios within this run, on one core
    python benchmarks/simulator.py --quick    # a tenth of the requests

Each case is one pot under continuous batching; the chats have a budget of 2,048 tokens a step and a pool of KV blocks.
Simulator and reference must give the same finish times before their speed counts. The SimPy loop knows neither budget
nor blocks: it does less. Ratios, not seconds, are what to compare between machines. Times are CPU seconds of this
process, the best of three for the simulator. SimPy (pip install simpy) is left out where absent. For other simulators
of LLM serving, such as sched-sim on PyPI, see their own claims: they model other things, so no ratio is printed.
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


def simpy_loop(work: sl.Workload, cap: int, step: sl.AffineStep) -> np.ndarray:
    """A batching loop as one would write it in SimPy, without budget and blocks; returns finish times in seconds."""
    import simpy

    env, line, finish = simpy.Environment(), deque(), np.zeros(len(work))
    left, prompt = work.output_tokens.tolist(), work.prompt_tokens.tolist()
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
            yield env.timeout(step(len(members), sum(prompt[request] for request in new)))
            for request in members:
                left[request] -= 1
                if not left[request]:
                    finish[request] = env.now
            members = [request for request in members if left[request]]

    env.process(guests())
    env.process(pot())
    env.run()
    return finish


def cpu_s(work: Callable[[], object], repeat: int = 3) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


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
    titles = ("requests / CPU s", "with summary", "× reference", "× SimPy", "peak B / request", "preempted")
    print(f"{'case':<28}" + "".join(f"{title:>18}" for title in titles))
    for name, (make, scheduler, step, kv) in cases().items():
        few, many = make(slow_n), make(n)
        fast, plain = (serve(few, scheduler, step, kv=kv) for serve in (sl.simulate, sl.reference))
        np.testing.assert_array_equal(fast.finish_ns, plain.finish_ns)
        each = cpu_s(lambda a=(many, scheduler, step), kv=kv: sl.simulate(*a, kv=kv)) / n
        told = cpu_s(lambda a=(many, scheduler, step), kv=kv: sl.simulate(*a, kv=kv).summary(), 1) / n
        slow = cpu_s(lambda a=(few, scheduler, step), kv=kv: sl.reference(*a, kv=kv), 1) / slow_n
        try:
            simpy_s = cpu_s(lambda w=few, c=scheduler.seats, t=step: simpy_loop(w, c, t), 1) / slow_n
            simpy = f"{simpy_s / each:,.0f}"
        except ImportError:
            simpy = "absent"
        figures = (f"{1 / each:,.0f}", f"{1 / told:,.0f}", f"{slow / each:,.0f}", simpy)
        memory = f"{peak_bytes(name, n):.0f}" if sys.platform == "linux" else "Linux only"
        preempted = int((sl.simulate(many, scheduler, step, kv=kv).preemptions > 0).sum())
        print(f"{name:<28}" + "".join(f"{x:>18}" for x in (*figures, memory, f"{preempted:,}")), flush=True)


if __name__ == "__main__":
    main()
