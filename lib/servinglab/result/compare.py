"""Two runs side by side: their summaries, what differs in what was run, and how far one is from the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from servinglab.result.result import Result

if TYPE_CHECKING:
    from servinglab.metrics.summary import Summary

from servinglab.base.text import aligned
from servinglab.result.save import as_text, is_known

_NOT_TOLD = (
    "other_range", "other_is_measured", "_inputs",  # of a KVCache: what logs show, and what follows anyway
    "roofline",  # of a step time: its coefficients are told
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Two runs, A and B. Printing it gives a table. Made by `compare_runs`.

    Attributes
    ----------
    names : pair of str
    summaries : pair of Summary
    settings : dict of str to pair
        What differs in what was run; None where one of the two lacks it.
    requests : str
        Whether both served the same requests.
    """

    names: tuple[str, str]
    summaries: tuple[Summary, Summary]
    settings: dict[str, tuple[Any, Any]]
    requests: str

    @property
    def figures(self) -> dict[str, tuple[float | None, float | None, float | None]]:
        """Each figure of the summaries: of A, of B, and (B − A)/A; None where it is undefined.

        Examples
        --------
        >>> import servinglab as sl
        >>> work = sl.poisson(20, 100, seed=1)
        >>> runs = [sl.simulate(work, sl.ContinuousBatching(cap), sl.AffineStep(0.4, 0.02)) for cap in (16, 32)]
        >>> a, b, change = compare_runs(*runs).figures["mean_batch_size"]
        >>> round(a, 2), round(b, 2), round(change, 3)
        (10.0, 10.0, 0.0)
        """
        a, b = (_flat(summary.to_dict()) for summary in self.summaries)
        no_figures = ("slo", "rejected_because", "kv_blocks", "unpriced_attention")
        names = [name for name in a | b if not name.startswith(no_figures)]
        return {name: (a.get(name), b.get(name), _change(a.get(name), b.get(name))) for name in names}

    @property
    def unpriced_attention(self) -> tuple[str | None, str | None]:
        """Of each run, that its prompts are longer than its step time can price, in one line; None if they aren't."""
        a, b = self.summaries
        return a.unpriced_attention, b.unpriced_attention

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries; None for what is undefined."""
        return {
            "names": list(self.names),
            "requests": self.requests,
            "unpriced_attention": list(self.unpriced_attention),
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "figures": {name: {"a": a, "b": b, "change": change} for name, (a, b, change) in self.figures.items()},
        }

    def __str__(self) -> str:
        from servinglab.base.text import show_number

        def cell(value: float | None) -> str:
            if value is None:
                return "–"
            return f"{value:,}" if isinstance(value, int) else show_number(value)

        lines = [f"A         {self.names[0]}", f"B         {self.names[1]}", f"requests  {self.requests}"]
        notes = dict.fromkeys(note for note in self.unpriced_attention if note)
        for note in notes:
            runs = "".join(run for run, its in zip("AB", self.unpriced_attention, strict=True) if its == note)
            lines.append(f"note {runs:<3}  {note}")
        lines.append("")
        if self.settings:
            rows = [(name, _setting(a), _setting(b)) for name, (a, b) in self.settings.items()]
            lines += aligned([("settings that differ", "A", "B"), *rows])
        else:
            lines.append("no setting differs")
        table = [("", "A", "B", "B against A")]
        for name, (a, b, change) in self.figures.items():
            if (a, b) != (None, None) and not (a == b and _is_count(name)):
                table.append(
                    (name, cell(a), cell(b), "–" if change is None else f"{100 * change:+.2f} %" if change else "=")
                )
        return "\n".join([*lines, "", *aligned(table)])


def compare_runs(
    a: Result, b: Result, *, names: tuple[str, str] = ("A", "B"), slo: Mapping[str, float] | None = None
) -> Comparison:
    """Two runs side by side: their summaries, the differences, and what differs in what was run.

    One run of each says nothing of chance: where the requests are not the same, part of any difference is luck.

    Parameters
    ----------
    a, b : Result
    names : pair of str
        For the table.
    slo : mapping, optional
        Limits in seconds, as for `Result.summary`: adds goodput.

    Examples
    --------
    >>> import servinglab as sl
    >>> work = sl.poisson(20, 1000, seed=1)
    >>> runs = [sl.simulate(work, sl.ContinuousBatching(cap), sl.AffineStep(0.4, 0.02)) for cap in (16, 32)]
    >>> both = compare_runs(*runs)
    >>> both.settings, both.requests
    ({'scheduler.max_num_seqs': (16, 32)}, 'the same arrivals and lengths')
    """
    return Comparison(
        names=names,
        summaries=(a.summary(slo), b.summary(slo)),
        settings=_differing(run_settings(a), run_settings(b)),
        requests=_same_requests(a, b),
    )


def relative_errors(ours: Result, real: Result) -> dict[str, float]:
    """(ours − real) / real of the throughputs, and of mean and P99 of TTFT, TPOT and E2E.

    Each is that of `Result.summary`. What is undefined in both, such as the TPOT of answers of one token, is left out.

    Raises
    ------
    ValueError
        If a request of either run didn't finish: its latencies are unknown.

    Examples
    --------
    >>> import servinglab as sl
    >>> work = sl.poisson(20, 1000, seed=1)
    >>> slow, quick = (sl.simulate(work, sl.ContinuousBatching(64), sl.AffineStep(a, 0.02)) for a in (0.4, 0.36))
    >>> {name: round(error, 2) for name, error in relative_errors(quick, slow).items() if "e2e" in name}
    {'mean_e2e_s': -0.11, 'p99_e2e_s': -0.11}
    """
    for run in (ours, real):
        if not run.finished.all():
            missing = int((~run.finished).sum())
            raise ValueError(f"every request must have finished; {missing} of {len(run)} did not")

    def figures(run: Result) -> dict[str, float]:
        summary = run.summary()
        found = {name: getattr(summary, name) for name in ("request_throughput", "output_throughput")}
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            spread = getattr(summary, name)
            found |= {f"mean_{name}": spread.mean, f"p99_{name}": spread.p99}
        return found

    a, b = figures(ours), figures(real)
    return {name: a[name] / b[name] - 1 for name in b if not (math.isnan(a[name]) and math.isnan(b[name]))}


def run_settings(result: Result) -> dict[str, Any]:
    """What was run, one plain value a setting, under names such as ``scheduler.max_num_seqs``.

    A catalogue row stands there by its id. Where a roofline gave the step time, its facts stand for the coefficients.

    Examples
    --------
    >>> import servinglab as sl
    >>> served = sl.simulate(sl.poisson(20, 10, seed=1), sl.StaticBatching(5), sl.AffineStep(0.4, 0.02))
    >>> {name: each for name, each in run_settings(served).items() if "scheduler" in name}
    {'scheduler': 'StaticBatching', 'scheduler.batch_size': 5, 'scheduler.last': 'full_price',
     'scheduler.streaming': False, 'scheduler.padded': True}
    """
    told = result.setup.told()
    if "roofline" in told:
        told.pop("step_time", None)
    return _flat(told_plainly(told))


def told_plainly(value: Any) -> Any:
    """A setting as JSON can hold it: a dataclass is a dictionary with its ``kind``, a catalogue row its id.

    Examples
    --------
    >>> import servinglab as sl
    >>> told_plainly({"kv": sl.Blocks(100), "pots": 1})
    {'kv': {'kind': 'Blocks', 'usable_blocks': 100, 'block_size': 16}, 'pots': 1}
    """
    if isinstance(value, Mapping):
        return {str(name): told_plainly(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [told_plainly(each) for each in value]
    if isinstance(value, (np.generic, bool, int, float, str, type(None))):
        return value.item() if isinstance(value, np.generic) else value
    if type(value).__name__ in ("Model", "Accelerator") and is_known(value):
        return value.id
    if is_dataclass(value) and is_known(value):
        names = [each.name for each in fields(value) if each.name not in _NOT_TOLD]
        if type(value).__name__ == "KVCache":
            names.append("usable_blocks")
        return {"kind": type(value).__name__, **{name: told_plainly(getattr(value, name)) for name in names}}
    return as_text(value)


# Comparing
def _flat(nested: Any, prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with dots in the names; an object's kind stands under the object's own name."""
    flat: dict[str, Any] = {}
    for name, each in nested.items():
        whole = prefix if name == "kind" else f"{prefix}.{name}" if prefix else name
        flat |= _flat(each, whole) if isinstance(each, dict) else {whole: each}
    return flat


def _differing(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (a.get(name), b.get(name)) for name in a | b if a.get(name) != b.get(name)}


def _same_requests(a: Result, b: Result) -> str:
    lengths = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("prompt_tokens", "output_tokens"))
    if lengths and np.array_equal(a.arrival_ns, b.arrival_ns):
        return "the same arrivals and lengths"
    if lengths:
        return "the same lengths, other arrivals"
    return "not the same: part of any difference is chance"


def _is_count(name: str) -> bool:
    """Whether a figure counts cases, and says nothing where both runs have as many."""
    return name.startswith(("by_status", "one_token")) or name.endswith((".count", ".missing"))


def _change(a: float | None, b: float | None) -> float | None:
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return None
    if a == b:
        return 0.0
    return b / a - 1 if a else None


def _percent(change: float | None) -> str:
    if change is None:
        return "–"
    return f"{100 * change:+.2f} %" if change else "="


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
