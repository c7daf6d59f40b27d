"""Our load tests under the field names of vLLM's ``bench serve``, for tools that read those.

The values follow vLLM's definitions, not ours: latencies from the real send; numpy's linear percentiles; the TTFT of
finished requests only; ITL as the gaps between chunks, whatever they hold; one duration, from the first send to the
end. So a figure here may differ from the report's, which says what it is.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from servinglab.measure.load_test.records import Record
from servinglab.measure.load_test.report import LoadTest

_PERCENTILES = (50, 90, 99)


def vllm_bench_fields(test: LoadTest) -> dict[int, dict[str, Any]]:
    """One dictionary a stage, by its number, of the requests that were sent.

    Where tokens weren't counted, their fields are null.
    """
    found = {}
    for stage, told in enumerate(test.state["stages"]):
        rows = [r for r in test.records if r.stage == stage and r.outcome != "interrupted" and r.sent_s is not None]
        if rows:
            found[stage] = _fields(test, told, rows)
    return found


def _fields(test: LoadTest, told: dict[str, Any], rows: list[Record]) -> dict[str, Any]:
    setup = test.state["setup"]
    whole = [record for record in rows if record.finished]
    counted = all(record.output_tokens is not None and record.prompt_tokens is not None for record in whole)
    duration = max(record.ended_s for record in rows) - min(_sent(record) for record in rows)
    inputs = [record.prompt_tokens or record.prompt_tokens_asked for record in rows]
    outputs = [(record.output_tokens or 0) if record.finished else 0 for record in rows]
    total_in = sum(record.prompt_tokens or 0 for record in whole) if counted else None
    total_out = sum(outputs) if counted else None
    ttfts = [_since_sent(record, record.first_token_s) if record.finished else 0.0 for record in rows]
    gaps = [np.diff(record.chunk_s).tolist() if record.finished else [] for record in rows]
    e2els = [_since_sent(record, record.finish_s) for record in whole]
    tpots = [
        (_since_sent(record, record.finish_s) - _since_sent(record, record.first_token_s)) / (record.output_tokens - 1)
        for record in whole
        if record.output_tokens is not None and record.output_tokens > 1
    ]
    closed = told["unit"] == "clients"
    fields: dict[str, Any] = {
        "date": datetime.fromtimestamp(test.state["began_unix_s"], UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if setup["api"] == "chat" else "openai",
        "backend": "openai-chat" if setup["api"] == "chat" else "openai",
        "label": None,
        "model_id": setup["model"],
        "tokenizer_id": setup["tokenizer"],
        "num_prompts": len(rows),
        "request_rate": "inf" if closed else told["load"],
        "burstiness": None,
        "max_concurrency": told["clients"] or None,
        "duration": duration,
        "completed": len(whole),
        "failed": len(rows) - len(whole),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": len(whole) / duration,
        "request_goodput": None,
        "output_throughput": None if total_out is None else total_out / duration,
        "total_token_throughput": None if total_in is None or total_out is None else (total_in + total_out) / duration,
        "input_lens": inputs,
        "output_lens": outputs,
        "ttfts": ttfts,
        "itls": gaps,
        "start_times": [_sent(record) for record in rows],
        "errors": ["" if record.finished else f"{record.outcome}: {record.detail}" for record in rows],
    }
    kept = [_since_sent(record, record.first_token_s) for record in whole]
    pooled = [gap for each in gaps for gap in each]
    for name, values in (("ttft", kept), ("tpot", tpots if counted else []), ("itl", pooled), ("e2el", e2els)):
        if values:
            in_ms = 1000 * np.array(values)
            fields |= {
                f"mean_{name}_ms": in_ms.mean(),
                f"median_{name}_ms": np.median(in_ms),
                f"std_{name}_ms": in_ms.std(),
            }
            fields |= {f"p{q}_{name}_ms": np.percentile(in_ms, q) for q in _PERCENTILES}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in fields.items()}


def _sent(record: Record) -> float:
    assert record.sent_s is not None
    return record.sent_s


def _since_sent(record: Record, at_s: float | None) -> float:
    return 0.0 if at_s is None else at_s - _sent(record)
