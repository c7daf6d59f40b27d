"""What the server counts, in Prometheus' text format under vLLM's names (those of its V1 engine, as of 0.32).

Times are wall-clock seconds as a client would see them; where the server runs faster than the simulated engine
(`speed`), they're shorter by that factor. They come from the steps' own instants: what HTTP adds isn't in them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from servinglab.metrics import exposed
from servinglab.metrics.exposed import Family

HISTOGRAMS = (
    exposed.TTFT, exposed.ITL, exposed.TPOT, exposed.E2E, exposed.QUEUE_TIME, exposed.INFERENCE_TIME,
    exposed.PREFILL_TIME, exposed.DECODE_TIME, exposed.REQUEST_PROMPT_TOKENS, exposed.REQUEST_OUTPUT_TOKENS,
    exposed.REQUEST_MAX_TOKENS, exposed.ITERATION_TOKENS, exposed.STEP_LATENESS,
)  # fmt: skip


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
        self.histograms = {family: Histogram(family.buckets) for family in HISTOGRAMS}

    def observe(self, family: Family, value: float, times: int = 1) -> None:
        """Count a value in one of the histograms."""
        self.histograms[family].observe(value, times)

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
        told: dict[Family, float | Mapping[str, int]] = {
            exposed.RUNNING: running,
            exposed.WAITING: waiting,
            exposed.KV_USAGE: kv_usage,
            exposed.PREEMPTIONS: self.num_preemptions,
            exposed.PROMPT_TOKENS: self.prompt_tokens,
            exposed.GENERATION_TOKENS: self.generation_tokens,
            exposed.PREFIX_QUERIES: self.prefix_cache_queries,
            exposed.PREFIX_HITS: prefix_cache_hits,
            exposed.ADMISSION_REJECTIONS: self.admission_rejections,
            exposed.REQUEST_SUCCESS: self.request_success,
            exposed.CONNECTIONS_OPEN: connections,
            exposed.CONNECTION_REJECTIONS: self.connection_rejections,
            exposed.FAULTS: faults,
        }
        config = self._lines(exposed.CACHE_CONFIG, [(self._in_braces(cache_config), 1.0)]) if cache_config else ""
        counted = "".join(self._family(family, value) for family, value in told.items())
        return config + counted + "".join(self._histogram(*each) for each in self.histograms.items())

    def _family(self, family: Family, value: float | Mapping[str, int]) -> str:
        """One sample, or one for each value of the family's label."""
        if isinstance(value, Mapping):
            return self._lines(family, [(self._in_braces({family.label: key}), n) for key, n in value.items()])
        return self._lines(family, [(self._in_braces({}), value)])

    @staticmethod
    def _lines(family: Family, rows: Sequence[tuple[str, float]]) -> str:
        name = family.sample
        samples = [f"{name}{labels} {float(n)}" for labels, n in rows]
        return "\n".join([f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}", *samples]) + "\n"

    def _histogram(self, family: Family, histogram: Histogram) -> str:
        name = family.name
        lines = [f"# HELP {name} {family.help}", f"# TYPE {name} histogram"]
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
