"""A run in a file, and two runs side by side.

`save_run` writes one file: a NumPy archive with every column of a `Result` and a JSON text that says what was run. It
holds no pickled objects, so reading a stranger's file runs nothing, and any tool that knows NumPy's format can read it.
`read_run` gives the `Result` back, equal in every column. Schedulers, step times, pools and catalogue rows of this
library come back as themselves; anything else (a step time of your own) as text, and then the result has no
`step_time`.

What isn't in the file: the workload beyond its arrivals and lengths, so no priorities, prefixes or pauses.
"""

from __future__ import annotations

import json
import math
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .result import Result, Segments, Status

if TYPE_CHECKING:
    from .metrics import Summary

FORMAT = "servinglab run"
FORMAT_VERSION = 1

_REQUESTS = (
    "arrival_ns", "scheduled_ns", "first_token_ns", "finish_ns", "prompt_tokens", "output_tokens", "preemptions",
    "status",
)  # fmt: skip
_SEGMENTS = tuple(each.name for each in fields(Segments))
_LATE_GAPS = ("gap_ns", "tokens")
_NOT_TOLD = ("other_range", "other_is_measured", "_inputs")  # of a KVCache: what logs show, and what follows anyway
_KIND = "@"  # in the JSON text, the key that says what an object was


def save_run(result: Result, path: str | Path) -> None:
    """Write a run to one file, which `read_run` reads.

    Parameters
    ----------
    result : Result
        Simulated or measured. Its `description` may hold anything; what isn't plain or of this library becomes text.
    path : str or Path
        By custom it ends in ``.npz``. An older file is replaced.

    Raises
    ------
    OSError
        If the file can't be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import servinglab as sl
    >>> served = sl.simulate(sl.poisson(20, 100, seed=1), sl.StaticBatching(10), sl.AffineStep(0.4, 0.02))
    >>> path = pathlib.Path(tempfile.mkdtemp(), "static.npz")
    >>> save_run(served, path)
    >>> again = read_run(path)
    >>> bool((again.finish_ns == served.finish_ns).all()), again.description["scheduler"].batch_size
    (True, 10)
    """
    from . import __version__

    step_time = _encode(result.step_time)
    about = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "servinglab": __version__,
        "streaming": result.streaming,
        "pots": result.pots,
        "step_time": None if _is_text(step_time) else step_time,
        "description": _encode(result.description),
        "rejections": [[int(number), reason] for number, reason in result.rejections.items()],
    }
    arrays = {f"requests.{name}": getattr(result, name) for name in _REQUESTS}
    if result.segments is not None:
        arrays |= {f"segments.{name}": getattr(result.segments, name) for name in _SEGMENTS}
    arrays |= {f"late_gaps.{name}": column for name, column in zip(_LATE_GAPS, result.late_gaps, strict=True)}
    arrays["about"] = np.frombuffer(json.dumps(about, allow_nan=False).encode(), np.uint8)
    with open(path, "wb") as file:  # NumPy adds an ending to a name, not to a file
        np.savez_compressed(file, **arrays)


def read_run(path: str | Path, since: str | None = None) -> Result:
    """Read a run: one that `save_run` or a hook to an engine wrote, a load test, or another tool's result file.

    Parameters
    ----------
    path : str or Path
        The content decides, not the name. For what isn't `save_run`'s see
        `servinglab.bench.other_tools.read_measured_run`.
    since : {"scheduled", "sent"}, optional
        Of a measured run only: what an arrival is, when the plan wanted the request sent or when it was sent. By
        default the first for a load test's folder and the second for other tools, which don't all have a schedule.

    Returns
    -------
    Result
        A file from another version of servinglab is read with a warning that names both.

    Raises
    ------
    ValueError
        If it isn't a run, is damaged, or was written in a format that this version doesn't know.
    OSError
        If it can't be read.

    Examples
    --------
    >>> read_run(__file__)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: ...saved_runs.py isn't a run: neither a NumPy archive of servinglab, nor the folder or the records ...
    """
    from . import __version__

    if not _is_archive(path):
        from .bench.other_tools import read_measured_run

        return read_measured_run(path, since)
    if since is not None:
        raise ValueError(f"since belongs to measured runs; {path} is a saved one")
    arrays = _arrays(path)
    try:
        about = json.loads(arrays["about"].tobytes())
        known = about["format"] == FORMAT
        written, version = str(about["servinglab"]), int(about["format_version"])
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(f"{path} isn't a saved run: it doesn't say that it is one")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path} was saved by servinglab {written} in format {version}; servinglab {__version__} reads "
            f"format {FORMAT_VERSION}"
        )
    if written != __version__:
        warnings.warn(f"{path} was saved by servinglab {written}; this is {__version__}", stacklevel=2)
    try:
        columns = _table(arrays, "requests", _REQUESTS)
        if columns["status"].size and columns["status"].max() >= len(Status):
            raise ValueError(f"it has a status {columns['status'].max()}")
        has_log = any(name.startswith("segments.") for name in arrays)
        return Result(
            **columns,
            segments=Segments(**_table(arrays, "segments", _SEGMENTS)) if has_log else None,
            streaming=bool(about["streaming"]),
            pots=about["pots"],
            step_time=_decode(about["step_time"]),
            description=_decode(about["description"]),
            late_gaps=tuple(_table(arrays, "late_gaps", _LATE_GAPS).values()),  # type: ignore[arg-type]
            rejections={int(number): str(reason) for number, reason in about["rejections"]},
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}, saved by servinglab {written}, can't be read by {__version__}: {what}") from None


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
        names = [name for name in a | b if not name.startswith(("slo", "rejected_because", "kv_blocks"))]
        return {name: (a.get(name), b.get(name), _change(a.get(name), b.get(name))) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Plain nested dictionaries; None for what is undefined."""
        return {
            "names": list(self.names),
            "requests": self.requests,
            "settings": {name: list(pair) for name, pair in self.settings.items()},
            "figures": {name: {"a": a, "b": b, "change": change} for name, (a, b, change) in self.figures.items()},
        }

    def __str__(self) -> str:
        from .metrics import show_number

        def cell(value: float | None) -> str:
            if value is None:
                return "–"
            return f"{value:,}" if isinstance(value, int) else show_number(value)

        lines = [f"A         {self.names[0]}", f"B         {self.names[1]}", f"requests  {self.requests}", ""]
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
    told = dict(result.description)
    if "roofline" in told:
        told.pop("step_time", None)
    return _flat(told_plainly(told))


def told_plainly(value: Any) -> Any:
    """A description as JSON can hold it: a dataclass is a dictionary with its ``kind``, a catalogue row its id.

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
    if type(value).__name__ in ("Model", "Accelerator") and _is_known(value):
        return value.id
    if is_dataclass(value) and _is_known(value):
        names = [each.name for each in fields(value) if each.name not in _NOT_TOLD]
        if type(value).__name__ == "KVCache":
            names.append("usable_blocks")
        return {"kind": type(value).__name__, **{name: told_plainly(getattr(value, name)) for name in names}}
    return _text(value)


# Objects as JSON and back


def _kinds() -> dict[str, type]:
    """What comes back from a file as itself."""
    from .catalog import Accelerator, Model
    from .kv_cache import KVCache, MeasuredOther
    from .roofline import Roofline
    from .schedulers import ContinuousBatching, DynamicBatching, LengthBucketedBatching, StaticBatching
    from .step_time import AffineStep, RoofStep
    from .token_reference import Blocks

    kinds = (
        Accelerator, AffineStep, Blocks, ContinuousBatching, DynamicBatching, KVCache,
        LengthBucketedBatching, MeasuredOther, Model, Roofline, RoofStep, StaticBatching,
    )  # fmt: skip
    return {kind.__name__: kind for kind in kinds}


def _is_known(value: Any) -> bool:
    return _kinds().get(type(value).__name__) is type(value)


def _encode(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_KIND: "float", "text": repr(value)}
    if isinstance(value, list):
        return [_encode(each) for each in value]
    if isinstance(value, tuple):
        return {_KIND: "tuple", "items": [_encode(each) for each in value]}
    if isinstance(value, Mapping):
        if all(isinstance(name, str) and name != _KIND for name in value):
            return {name: _encode(each) for name, each in value.items()}
        return {_KIND: "dict", "items": [[_encode(name), _encode(each)] for name, each in value.items()]}
    if _is_known(value):
        return {
            _KIND: type(value).__name__,
            **{each.name: _encode(getattr(value, each.name)) for each in fields(value)},
        }
    return {_KIND: "text", "text": _text(value)}


def _is_text(encoded: Any) -> bool:
    return isinstance(encoded, dict) and encoded.get(_KIND) == "text"


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {name: _decode(each) for name, each in value.items()}
    if kind == "float":
        return float(value["text"])
    if kind == "text":
        return str(value["text"])
    if kind == "tuple":
        return tuple(_decode(each) for each in value["items"])
    if kind == "dict":
        return {_decode(name): _decode(each) for name, each in value["items"]}
    known = _kinds().get(kind)
    if known is None:
        raise ValueError(f"it holds a {kind!r}, which this version doesn't know")
    return known(**{name: _decode(each) for name, each in value.items() if name != _KIND})


def _text(value: Any) -> str:
    """A name for a function of one's own, without the address that its repr has."""
    return str(getattr(value, "__qualname__", value))


# Arrays


def _is_archive(path: str | Path) -> bool:
    if Path(path).is_dir():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _arrays(path: str | Path) -> dict[str, npt.NDArray[Any]]:
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return dict(archive)
        except (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            raise ValueError(f"{path} isn't a saved run, or is damaged: {error}") from None


def _table(arrays: dict[str, npt.NDArray[Any]], prefix: str, names: tuple[str, ...]) -> dict[str, npt.NDArray[Any]]:
    table = {name: arrays[f"{prefix}.{name}"] for name in names}
    for name, column in table.items():
        kinds = "f" if name == "waited_request_s" else "iu"
        if column.ndim != 1 or column.dtype.kind not in kinds or len(column) != len(table[names[0]]):
            raise ValueError(f"{prefix}.{name} has {column.dtype} of shape {column.shape}")
    return table


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


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """The first column to the left, the others to the right."""
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join([f"{row[0]:<{wide[0]}}", *(f"{cell:>{w}}" for cell, w in zip(row[1:], wide[1:], strict=True))])
        for row in rows
    ]
