"""What a server exposes of itself to Prometheus: names, help texts and buckets.

The names under ``vllm:`` are those of vLLM's V1 engine as of 0.32, with its buckets; those under ``servinglab:`` are
ours. A server that exposes them, whoever reads them, and the rules and dashboards on top take them from here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """One metric.

    Attributes
    ----------
    name : str
        Without the endings that samples have.
    kind : {"gauge", "counter", "histogram"}
    help : str
        What it is, for the page of metrics.
    buckets : tuple of float
        Upper bounds of a histogram's buckets, without the infinite one.
    label : str
        By which it is split; empty if it isn't.

    Examples
    --------
    >>> PREEMPTIONS.sample, RUNNING.sample
    ('vllm:num_preemptions_total', 'vllm:num_requests_running')
    """

    name: str
    kind: str
    help: str
    buckets: tuple[float, ...] = ()
    label: str = ""

    @property
    def sample(self) -> str:
        """The name of its samples; a histogram's have further endings."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


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

RUNNING = Family("vllm:num_requests_running", "gauge", "Requests in execution.")
WAITING = Family("vllm:num_requests_waiting", "gauge", "Requests in the line.")
KV_USAGE = Family("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache's blocks in use, 0 to 1.")
CACHE_CONFIG = Family("vllm:cache_config_info", "gauge", "The KV cache.")

PREEMPTIONS = Family("vllm:num_preemptions", "counter", "Requests that lost their blocks.")
PROMPT_TOKENS = Family("vllm:prompt_tokens", "counter", "Prompt tokens of requests that got their first token.")
GENERATION_TOKENS = Family("vllm:generation_tokens", "counter", "Output tokens.")
PREFIX_QUERIES = Family("vllm:prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache.")
PREFIX_HITS = Family("vllm:prefix_cache_hits", "counter", "Tokens found in the prefix cache.")
ADMISSION_REJECTIONS = Family("vllm:admission_rejections", "counter", "Requests turned away because the line was full.")
REQUEST_SUCCESS = Family("vllm:request_success", "counter", "Requests that ended, by reason.", label="finished_reason")

TTFT = Family("vllm:time_to_first_token_seconds", "histogram", "First token - arrival.", _TTFT)
ITL = Family("vllm:inter_token_latency_seconds", "histogram", "Token - token before it.", _GAP)
TPOT = Family(
    "vllm:request_time_per_output_token_seconds", "histogram", "(Last - first token) / (tokens - 1) of a request.", _GAP
)
E2E = Family("vllm:e2e_request_latency_seconds", "histogram", "Last token - arrival.", _REQUEST)
QUEUE_TIME = Family("vllm:request_queue_time_seconds", "histogram", "First step - arrival.", _REQUEST)
INFERENCE_TIME = Family("vllm:request_inference_time_seconds", "histogram", "Last token - first step.", _REQUEST)
PREFILL_TIME = Family("vllm:request_prefill_time_seconds", "histogram", "First token - first step.", _REQUEST)
DECODE_TIME = Family("vllm:request_decode_time_seconds", "histogram", "Last - first token.", _REQUEST)
REQUEST_PROMPT_TOKENS = Family("vllm:request_prompt_tokens", "histogram", "Prompt tokens of a request.", _LENGTH)
REQUEST_OUTPUT_TOKENS = Family("vllm:request_generation_tokens", "histogram", "Output tokens of a request.", _LENGTH)
REQUEST_MAX_TOKENS = Family("vllm:request_params_max_tokens", "histogram", "max_tokens of a request.", _LENGTH)
ITERATION_TOKENS = Family("vllm:iteration_tokens_total", "histogram", "Tokens of a step.", _STEP)

CONNECTIONS_OPEN = Family("servinglab:connections_open", "gauge", "Connections of clients.")
CONNECTION_REJECTIONS = Family(
    "servinglab:connection_rejections", "counter", "Connections turned away because no more files could be opened."
)
FAULTS = Family("servinglab:faults", "counter", "Faults made on purpose, by kind.", label="kind")
STEP_LATENESS = Family(
    "servinglab:step_lateness_seconds",
    "histogram",
    "When a step's tokens were handed over - when it ended; large: this machine is too slow.",
    _LATE,
)

READ_AS = {
    KV_USAGE.sample: "kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc": "kv_cache_usage_perc",
    "sglang:token_usage": "kv_cache_usage_perc",
    RUNNING.sample: "num_requests_running",
    "sglang:num_running_reqs": "num_requests_running",
    WAITING.sample: "num_requests_waiting",
    "sglang:num_queue_reqs": "num_requests_waiting",
    PREEMPTIONS.sample: "num_preemptions",
    PREEMPTIONS.name: "num_preemptions",
}
"""What a load test keeps of a server's metrics: the names that engines give them, older ones too, and ours."""
