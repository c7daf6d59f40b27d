"""How late is the load generator, and does it say so when it is the bottleneck?

    python benchmarks/load_generator.py            # 200 requests/s for 30 s: answers of 20, then of 100 chunks
    python benchmarks/load_generator.py --quick    # 5 s each

The server is in this file: one process, an `asyncio.Protocol` that writes chunks of about 190 bytes by a timer and
models nothing. It shares the two cores with the generator's two sending processes and the one that writes, as on a
laptop. So what is measured is the worst case of a load test: a server on the client's own machine, and a fast one.

Asked: at 20 chunks a P99 of schedule delay under 5 ms. At 100 chunks (20,000 chunks a second) the generator must either
keep up or say that it was the bottleneck. "others" is the share of the two cores that other processes took meanwhile:
at more than a few per cent the figures are the machine's as much as the generator's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from servinglab.measure.load_test.plan import Stage
from servinglab.measure.load_test.report import make_report, read_load_test
from servinglab.measure.load_test.run import Setup, run_load_test
from servinglab.workload.arrival_laws import poisson

RATE_RPS = 200
GAP_S = 0.02


def serve(chunks: int) -> None:
    """Answer every POST with `chunks` chunks, GAP_S apart; print the port first."""

    def event(content: dict) -> bytes:
        data = b"data: " + json.dumps(content).encode() + b"\n\n"
        return b"%x\r\n%s\r\n" % (len(data), data)

    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = {"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}
    chunk = event({**base, "choices": [delta]})
    usage = {"prompt_tokens": 100, "completion_tokens": chunks, "total_tokens": 100 + chunks}
    last = event({**base, "choices": [], "usage": usage}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    class Answers(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport, self.held = transport, b""

        def data_received(self, data: bytes) -> None:
            self.held += data
            while (end := self.held.find(b"\r\n\r\n")) >= 0:
                lines = self.held[:end].lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                if len(self.held) < end + 4 + length:
                    return
                self.held = self.held[end + 4 + length :]
                if lines[0].startswith(b"get"):
                    self.transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                else:
                    loop.call_later(GAP_S, self.step, 0)

        def step(self, k: int) -> None:
            if not self.transport.is_closing():
                self.transport.write((head if k == 0 else b"") + chunk + (last if k == chunks - 1 else b""))
                if k < chunks - 1:
                    loop.call_later(GAP_S, self.step, k + 1)

    async def main() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Answers, "127.0.0.1", 0, backlog=1000)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    loop = asyncio.new_event_loop()
    asyncio.run(main())


def busy_s() -> tuple[float, float]:
    """CPU seconds of the whole machine, and of this process and its ended children (Linux; else nothing)."""
    ours = sum(os.times()[:4])
    try:
        first = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    except OSError:
        return ours, ours
    user, nice, system, _, _, irq, softirq, steal = (int(each) / os.sysconf("SC_CLK_TCK") for each in first[:8])
    return user + nice + system + irq + softirq + steal, ours


def measure(chunks: int, seconds: float) -> str:
    """One row of the table."""
    server = subprocess.Popen([sys.executable, __file__, "--serve", str(chunks)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        work = poisson(RATE_RPS, round(RATE_RPS * seconds), seed=1, prompt_tokens=100, output_tokens=chunks)
        setup = Setup(f"http://127.0.0.1:{port}", "chat", "m", seed=1)
        with tempfile.TemporaryDirectory() as folder:
            before, start_s = busy_s(), time.monotonic()
            run_load_test(Path(folder), setup, [Stage(work, RATE_RPS)], workers=2)
            lasted_s = time.monotonic() - start_s
            server.kill()
            server.wait()
            after = busy_s()
            (row,) = make_report(read_load_test(folder), warmup_s=min(2.0, seconds / 5)).content["levels"]
    finally:
        server.kill()
        server.wait()
    others = (after[0] - before[0] - (after[1] - before[1])) / (lasted_s * min(2, os.cpu_count() or 1))
    delay, client = row["schedule_delay_s"], row["client"]
    failed = row["requests"] - row["outcomes"].get("finished", 0)
    cells = [1000 * delay["p50"], 1000 * delay["p99"], 1000 * client["lag_p99_s"], 100 * client["busy"], 100 * others]
    told = "says it was the bottleneck" if client["bound"] else "says it kept up"
    return f"{chunks:>6}  " + "  ".join(f"{cell:>9.2f}" for cell in cells) + f"  {failed:>6}  {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 s each")
    parser.add_argument("--serve", type=int, metavar="CHUNKS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # children inherit it
    heads = ("delay P50", "delay P99", "lag P99", "busy", "others")
    print(f"{RATE_RPS} requests/s, Poisson; ms, and per cent of a core (busy) or of two (others)")
    print("chunks  " + "  ".join(f"{head:>9}" for head in heads) + "  failed")
    for chunks in (20, 100):
        print(measure(chunks, 5.0 if args.quick else 30.0), flush=True)


if __name__ == "__main__":
    main()
