"""What the server counts, in Prometheus' text format under vLLM's names (those of its V1 engine, as of 0.32).

Times are wall-clock seconds as a client would see them; where the server runs faster than the simulated engine
(`speed`), they're shorter by that factor. They come from the steps' own instants: what HTTP adds isn't in them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_GAP = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LENGTH = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_LATE = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 1.0)


class Histogram:
    """Counts by bucket, with their sum.

    Examples
    --------
    >>> gaps = Histogram((0.1, 1.0))
    >>> gaps.observe(0.1); gaps.observe(2.0, times=3)
    >>> gaps.cumulative(), gaps.sum
    ([1, 1, 4], 6.1)
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[int]:
        """How many observations are at most each bound; the last: all."""
        total, rows = 0, []
        for count in self.counts:
            total += count
            rows.append(total)
        return rows


class Metrics:
    """Counters and histograms of one engine; gauges are read when the text is asked for."""

    def __init__(self, model: str) -> None:
        self._labels = {"engine": "0", "model_name": model}
        self.num_preemptions = self.prompt_tokens = self.generation_tokens = self.admission_rejections = 0
        self.prefix_cache_queries = self.connection_rejections = 0
        self.request_success: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0})
        self.time_to_first_token = Histogram(_TTFT)
        self.inter_token_latency = Histogram(_GAP)
        self.request_time_per_output_token = Histogram(_GAP)
        self.e2e_request_latency = Histogram(_REQUEST)
        self.request_queue_time = Histogram(_REQUEST)
        self.request_inference_time = Histogram(_REQUEST)
        self.request_prefill_time = Histogram(_REQUEST)
        self.request_decode_time = Histogram(_REQUEST)
        self.request_prompt_tokens = Histogram(_LENGTH)
        self.request_generation_tokens = Histogram(_LENGTH)
        self.request_params_max_tokens = Histogram(_LENGTH)
        self.iteration_tokens = Histogram(_STEP)
        self.step_lateness = Histogram(_LATE)

    def text(
        self,
        running: int,
        waiting: int,
        kv_usage: float,
        prefix_cache_hits: int,
        connections: int,
        faults: Mapping[str, int],
        cache_config: Mapping[str, str],
    ) -> str:
        """All of it; the arguments are what isn't counted here. vLLM counts its null block among `num_gpu_blocks`."""
        info = ""
        if cache_config:
            name = "vllm:cache_config_info"
            info = f"# HELP {name} The KV cache.\n# TYPE {name} gauge\n{name}{self._in_braces(cache_config)} 1.0\n"
        return info + "".join(self._families(running, waiting, kv_usage, prefix_cache_hits, connections, faults))

    def _families(
        self,
        running: int,
        waiting: int,
        kv_usage: float,
        prefix_cache_hits: int,
        connections: int,
        faults: Mapping[str, int],
    ) -> Iterator[str]:
        def family(name: str, kind: str, what: str, value: float | Mapping[str, int], by: str = "") -> str:
            """One sample, or one for each value of the label `by`."""
            sample = name + ("_total" if kind == "counter" else "")
            rows: list[tuple[str, float]]
            if isinstance(value, Mapping):
                rows = [(self._in_braces({by: key}), n) for key, n in value.items()]
            else:
                rows = [(self._in_braces({}), value)]
            lines = [f"# HELP {sample} {what}", f"# TYPE {sample} {kind}"]
            return "\n".join([*lines, *(f"{sample}{labels} {float(n)}" for labels, n in rows)]) + "\n"

        for name, what, gauge in (
            ("num_requests_running", "Requests in execution.", running),
            ("num_requests_waiting", "Requests in the line.", waiting),
            ("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1.", kv_usage),
        ):
            yield family(f"vllm:{name}", "gauge", what, gauge)
        for name, what, counter in (
            ("num_preemptions", "Requests that lost their blocks.", self.num_preemptions),
            ("prompt_tokens", "Prompt tokens of requests that got their first token.", self.prompt_tokens),
            ("generation_tokens", "Output tokens.", self.generation_tokens),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", self.prefix_cache_queries),
            ("prefix_cache_hits", "Tokens found in the prefix cache.", prefix_cache_hits),
            ("admission_rejections", "Requests turned away because the line was full.", self.admission_rejections),
        ):
            yield family(f"vllm:{name}", "counter", what, counter)
        ends = self.request_success
        yield family("vllm:request_success", "counter", "Requests that ended, by reason.", ends, by="finished_reason")
        yield family("servinglab:connections_open", "gauge", "Connections of clients.", connections)
        what = "Connections turned away because no more files could be opened."
        yield family("servinglab:connection_rejections", "counter", what, self.connection_rejections)
        yield family("servinglab:faults", "counter", "Faults made on purpose, by kind.", faults, by="kind")
        for name, what, histogram in (
            ("vllm:time_to_first_token_seconds", "First token - arrival.", self.time_to_first_token),
            ("vllm:inter_token_latency_seconds", "Token - token before it.", self.inter_token_latency),
            (
                "vllm:request_time_per_output_token_seconds",
                "(Last - first token) / (tokens - 1) of a request.",
                self.request_time_per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", "Last token - arrival.", self.e2e_request_latency),
            ("vllm:request_queue_time_seconds", "First step - arrival.", self.request_queue_time),
            ("vllm:request_inference_time_seconds", "Last token - first step.", self.request_inference_time),
            ("vllm:request_prefill_time_seconds", "First token - first step.", self.request_prefill_time),
            ("vllm:request_decode_time_seconds", "Last - first token.", self.request_decode_time),
            ("vllm:request_prompt_tokens", "Prompt tokens of a request.", self.request_prompt_tokens),
            ("vllm:request_generation_tokens", "Output tokens of a request.", self.request_generation_tokens),
            ("vllm:request_params_max_tokens", "max_tokens of a request.", self.request_params_max_tokens),
            ("vllm:iteration_tokens_total", "Tokens of a step.", self.iteration_tokens),
            (
                "servinglab:step_lateness_seconds",
                "When a step's tokens were handed over - when it ended; large: this machine is too slow.",
                self.step_lateness,
            ),
        ):
            yield self._histogram(name, what, histogram)

    def _histogram(self, name: str, what: str, histogram: Histogram) -> str:
        lines = [f"# HELP {name} {what}", f"# TYPE {name} histogram"]
        rows = histogram.cumulative()
        for bound, count in zip([*map(float, histogram.bounds), "+Inf"], rows, strict=True):
            lines.append(f"{name}_bucket{self._in_braces({'le': str(bound)})} {float(count)}")
        lines.append(f"{name}_count{self._in_braces({})} {float(rows[-1])}")
        lines.append(f"{name}_sum{self._in_braces({})} {histogram.sum!r}")
        return "\n".join(lines) + "\n"

    def _in_braces(self, labels: Mapping[str, str]) -> str:
        pairs = sorted({**self._labels, **labels}.items())
        return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
