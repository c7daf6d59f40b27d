"""Does a load test of `servinglab serve-sim` measure what the simulator predicts? And how much can the server carry?

    python benchmarks/serve_sim.py             # three loads below the knee, then throughput; about 3 minutes
    python benchmarks/serve_sim.py --quick     # fewer requests

The server runs in a process of its own. A client here sends requests at scheduled instants, over connections that stay
open, and times each answer from its *scheduled* instant; the simulator serves the very same arrivals and lengths. Asked
for: within 3 % at P50 and 5 % at P99. Whatever else runs on the machine is in the measured figures, so run it on an
idle one; the client's own lateness is printed beside.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import servinglab as sl
from servinglab.sim_server.live import precise_loop

LIMITS = {"p50": 0.03, "p99": 0.05}
BUDGET = 2048
CASES = {  # name: step time, mean prompt and answer tokens, loads as shares of the most that the engine carries
    "an 8B model on a card": (sl.AffineStep(6e-3, 32e-6, 32e-6), 200, 60, (0.3, 0.6)),
    "a 70B model": (sl.AffineStep(25e-3, 1e-4, 1e-4), 300, 60, (0.3, 0.6, 0.75)),
}
SEATS = 64


@dataclass
class Outcome:
    """When a request was due, was sent, got its first and its last token; its events that brought a token."""

    due: float
    sent: float = float("nan")
    first: float = float("nan")
    last: float = float("nan")
    events: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Client(asyncio.Protocol):
    """One connection that stays open; one request at a time."""

    def __init__(self, free: list[Client]) -> None:
        self._free, self._outcome, self._tail = free, None, b""

    def connection_made(self, transport) -> None:
        self._transport = transport

    def send(self, outcome: Outcome, request: bytes) -> None:
        self._outcome, self._tail = outcome, b""
        self._transport.write(request)
        outcome.sent = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        now, outcome = time.perf_counter(), self._outcome
        if b'"text":' in data:
            outcome.events += data.count(b'"text":')
            if outcome.first != outcome.first:
                outcome.first = now
            outcome.last = now
        self._tail = (self._tail + data)[-5:]
        if self._tail == b"0\r\n\r\n":
            self._free.append(self)
            outcome.done.set()

    def close(self) -> None:
        self._transport.close()


def asks(work: sl.Workload) -> list[bytes]:
    """Each request as it goes over the wire."""
    requests = []
    for prompt, answer in zip(work.prompt_tokens.tolist(), work.output_tokens.tolist(), strict=True):
        ids = [7] * prompt
        body = json.dumps({"prompt": ids, "max_tokens": answer, "ignore_eos": True, "stream": True}).encode()
        requests.append(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    return requests


async def load(port: int, work: sl.Workload, connections: int) -> list[Outcome]:
    """Send every request at its instant; wait for all answers."""
    loop = asyncio.get_running_loop()
    free: list[Client] = []
    clients = [(await loop.create_connection(lambda: Client(free), "127.0.0.1", port))[1] for _ in range(connections)]
    free += clients
    start = time.perf_counter() + 0.2
    outcomes = [Outcome(start + at) for at in work.arrival_s.tolist()]
    for outcome, request in zip(outcomes, asks(work), strict=True):
        if (pause := outcome.due - time.perf_counter()) > 0:
            await asyncio.sleep(pause)
        if not free:
            free.append((await loop.create_connection(lambda: Client(free), "127.0.0.1", port))[1])
            clients.append(free[-1])
        free.pop().send(outcome, request)
    for outcome in outcomes:
        await asyncio.wait_for(outcome.done.wait(), 120)
    for client in clients:
        client.close()
    return outcomes


class Server:
    """`servinglab serve-sim` in a process of its own."""

    def __init__(self, step: sl.AffineStep, speed: float = 1.0) -> None:
        parts = ("fixed_s", "per_request_s", "per_prefill_token_s", "per_kv_token_s")
        options = [text for name in parts for text in (f"--{name.replace('_', '-')}", repr(getattr(step, name)))]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "servinglab", "serve-sim", "--port", "0", "--max-num-seqs", str(SEATS),
             "--max-num-batched-tokens", str(BUDGET), "--speed", str(speed), *options],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = next(line for line in self._process.stdout if line.startswith("serving"))
        self.port = int(line.split("/v1")[0].rsplit(":", 1)[1])

    def cpu_s(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as file:
            numbers = file.read().rsplit(")", 1)[1].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> str:
        self._process.terminate()
        return self._process.communicate()[0].strip()


def most_rps(step: sl.AffineStep, prompt: float, answer: float) -> float:
    """Requests per second that the engine carries with every seat taken."""
    return 1 / (step.per_prefill_token_s * prompt + answer * (step.fixed_s / SEATS + step.per_request_s))


def measure(outcomes: list[Outcome], work: sl.Workload) -> dict[str, np.ndarray]:
    due, first, last = (np.array([getattr(o, name) for o in outcomes]) for name in ("due", "first", "last"))
    more = work.output_tokens > 1
    return {
        "ttft_s": first - due,
        "tpot_s": ((last - first) / np.where(more, work.output_tokens - 1, 1))[more],
        "e2e_s": last - due,
    }


def compare(name: str, step: sl.AffineStep, prompt: int, answer: int, share: float, n: int) -> bool:
    """Load one server at one rate; print simulated against measured; say whether it kept the limits."""
    lengths = dict(prompt_tokens=sl.lengths.Geometric(prompt), output_tokens=sl.lengths.Geometric(answer))
    rate = share * most_rps(step, prompt, answer)
    work = sl.poisson(rate, n, 1, **lengths)
    predicted = sl.simulate(work, sl.ContinuousBatching(SEATS, BUDGET), step)
    server = Server(step)
    try:
        loop = precise_loop()
        outcomes = loop.run_until_complete(load(server.port, work, connections=4 * SEATS))
        loop.close()
        busy = server.cpu_s() / float(work.arrival_s[-1])
    finally:
        said = server.stop()
    assert [o.events for o in outcomes] == work.output_tokens.tolist()
    measured = measure(outcomes, work)
    late = np.array([o.sent - o.due for o in outcomes])
    print(f"\n{name}, {rate:.1f} requests/s ({100 * share:.0f} % of what it carries), {n:,} requests")
    print(f"  the server's CPU {100 * busy:.0f} % of one core; ", end="")
    print(f"the client sent {1e3 * np.percentile(late, 99):.2f} ms late (P99)")
    print(f"  {said.splitlines()[-1]}")
    print(f"  {'':6}{'P50 simulated':>15}{'measured':>12}{'off':>9}{'P99 simulated':>17}{'measured':>12}{'off':>9}")
    kept = True
    for column, values in measured.items():
        simulated = getattr(predicted, column)
        cells = []
        for q, limit in LIMITS.items():
            a, b = (sl.metrics.percentile(x[~np.isnan(x)], int(q[1:]) / 100) for x in (simulated, values))
            kept &= abs(b / a - 1) <= limit
            cells.append(f"{1e3 * a:12.2f} ms{1e3 * b:9.2f} ms{100 * (b / a - 1):+8.2f} %")
        print(f"  {column[:-2]:6}{'  '.join(cells)}")
    return kept


def throughput(n: int) -> None:
    """Twenty chunks a request, at rates beyond what an engine of short steps needs."""
    step = sl.AffineStep(5e-3, 1e-5)
    print("\n20 chunks a request, steps of 5 ms")
    for rate in (200, 400, 800, 1200):
        work = sl.poisson(rate, min(n, 5 * rate), 1, prompt_tokens=20, output_tokens=20)
        server = Server(step)
        try:
            loop = precise_loop()
            before = server.cpu_s()
            outcomes = loop.run_until_complete(load(server.port, work, connections=1024))
            loop.close()
            spent = server.cpu_s() - before
        finally:
            said = server.stop().splitlines()[-1].rpartition(", ")[2]
        served = len(work) / (max(o.last for o in outcomes) - outcomes[0].due)
        print(f"  {rate:5} requests/s offered, {served:7.1f} served; ", end="")
        print(f"CPU {1e6 * spent / (20 * len(work)):5.1f} µs a chunk, ", end="")
        print(f"{100 * spent / (len(work) / served):3.0f} % of one core; {said}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    gc.disable()  # a collection would make the client late
    n = 300 if parser.parse_args().quick else 1500
    kept = [
        compare(name, step, prompt, answer, share, n)
        for name, (step, prompt, answer, shares) in CASES.items()
        for share in shares
    ]
    throughput(2000 if n < 1000 else 6000)
    print(f"\nwithin {LIMITS['p50']:.0%} at P50 and {LIMITS['p99']:.0%} at P99: {sum(kept)} of {len(kept)} runs")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
