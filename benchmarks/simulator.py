"""How fast is the simulator, beside the same loop written plainly and in SimPy?

    python benchmarks/simulator.py            # ratios within this run, on one core
    python benchmarks/simulator.py --quick    # a tenth of the requests

Each case is one pot under continuous batching. The three programs serve the same requests and must give the same
finish times before their speed counts; ratios, not seconds, are what to compare between machines. Times are CPU
seconds of this process, the best of three. SimPy (pip install simpy) is left out, with a line saying so, where absent.
"""

from __future__ import annotations

import argparse
import os
import time
import tracemalloc
from collections import deque
from collections.abc import Callable

import numpy as np
import servinglab as sl

CAP = 32
STEP = sl.AffineStep(0.4, 0.02)
CHAT_STEP = sl.AffineStep(8e-3, 5e-5)


def simpy_loop(work: sl.Workload, cap: int, step: sl.AffineStep) -> np.ndarray:
    """The batching loop as one would write it in SimPy; returns finish times in seconds."""
    import simpy

    env, line, finish = simpy.Environment(), deque(), np.zeros(len(work))
    left = work.output_tokens.copy()
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
            members += [line.popleft() for _ in range(min(len(line), cap - len(members)))]
            if not members:
                bell[0] = env.event()
                yield bell[0]
                continue
            yield env.timeout(step(len(members)))
            left[members] -= 1
            finish[[request for request in members if left[request] == 0]] = env.now
            members = [request for request in members if left[request] > 0]

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


def peak_bytes(work: sl.Workload, scheduler: sl.ContinuousBatching, step: sl.AffineStep) -> int:
    """Peak memory that a run allocates beside its workload, as tracemalloc counts it (numpy reports to it)."""
    tracemalloc.start()
    sl.simulate(work, scheduler, step)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the requests")
    shrink = 10 if parser.parse_args().quick else 1
    n, slow_n = 1_000_000 // shrink, 20_000 // shrink
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    answers = sl.lengths.Geometric(100)
    cases = {
        "kitchen orders, ρ = 0.3": (lambda n: sl.poisson(12.0, n, seed=1), STEP, CAP),
        "kitchen orders, ρ = 0.8": (lambda n: sl.poisson(25.0, n, seed=1), STEP, CAP),
        "kitchen orders, ρ = 1.5": (lambda n: sl.poisson(48.0, n, seed=1), STEP, CAP),
        "chats of 100 tokens": (lambda n: sl.poisson(20.0, n, seed=1, output_tokens=answers), CHAT_STEP, 256),
    }
    print(f"{'case':<26}{'requests / CPU s':>18}{'× reference':>14}{'× SimPy':>10}{'peak B / request':>18}")
    for name, (make, step, cap) in cases.items():
        few, many = make(slow_n), make(n)
        scheduler = sl.ContinuousBatching(cap)
        fast = sl.simulate(few, scheduler, step)
        np.testing.assert_array_equal(fast.finish_ns, sl.reference(few, scheduler, step).finish_ns)
        each = cpu_s(lambda w=many, s=scheduler, t=step: sl.simulate(w, s, t)) / n
        plain = cpu_s(lambda w=few, s=scheduler, t=step: sl.reference(w, s, t), 1) / slow_n
        try:
            np.testing.assert_allclose(simpy_loop(few, cap, step), fast.finish_s, rtol=1e-6)
            simpy = f"{cpu_s(lambda w=few, c=cap, t=step: simpy_loop(w, c, t), 1) / slow_n / each:.0f}"
        except ImportError:
            simpy = "absent"
        peak = peak_bytes(many, scheduler, step) / n
        print(f"{name:<26}{1 / each:>18,.0f}{plain / each:>14.0f}{simpy:>10}{peak:>18.0f}", flush=True)


if __name__ == "__main__":
    main()
