"""Quantiles and rates against a real Prometheus, where one is installed, and by hand."""

from __future__ import annotations

import json
import math
import random
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from servinglab.monitoring.promql import histogram_quantile, increase, rate, sum_buckets

NOON_S = 1_700_000_000
BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


def damaged_buckets(dice: random.Random) -> dict[float, float]:
    """Counts of a histogram as a scrape may bring them: whole, falling, without +Inf, empty, or with noise."""
    bounds = sorted(dice.sample(BOUNDS, dice.randint(1, len(BOUNDS))))
    if dice.random() < 0.2:
        bounds = [0.0, *bounds]
    counts = [dice.choice([0, 0, dice.randint(0, 50)]) for _ in range(len(bounds) + 1)]
    total, cumulative = 0.0, []
    for count in counts:
        total += count
        cumulative.append(total)
    damage = dice.choice(["none", "none", "falling", "no +Inf", "all zero", "noise"])
    if damage == "falling":
        cumulative[dice.randrange(len(cumulative))] = float(dice.randint(0, 20))
    elif damage == "all zero":
        cumulative = [0.0] * len(cumulative)
    elif damage == "noise":
        cumulative = [each * (1 + dice.choice([-1, 0, 1]) * 1e-14) for each in cumulative]
    buckets = dict(zip([*bounds, math.inf], cumulative, strict=True))
    if damage == "no +Inf":
        del buckets[math.inf]
    return buckets


def damaged_counter(dice: random.Random) -> tuple[list[float], list[float]]:
    """When a counter was scraped within ten minutes, and what it said: scrapes are late or missing, it restarts."""
    at, value, times, values = dice.randint(0, 200) / 10, float(dice.choice([0, dice.randint(0, 500)])), [], []
    while at < 600:
        if dice.random() < 0.85:
            times.append(round(at, 3))
            values.append(value)
        at += 15 + dice.choice([0, 0, 0.013, -0.4, 2.5])
        value = 0.0 if dice.random() < 0.05 else value + dice.randint(0, 60)
    return times, values


class Server:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str, at_s: float) -> dict[str, float]:
        """The values that a query gives at an instant, by the label `case`."""
        data = urllib.parse.urlencode({"query": query, "time": f"{at_s:.3f}"}).encode()
        with urllib.request.urlopen(f"{self.url}/api/v1/query", data, timeout=60) as answer:
            rows = json.load(answer)["data"]["result"]
        return {row["metric"]["case"]: float(row["value"][1]) for row in rows}


SETS = [damaged_buckets(random.Random(seed)) for seed in range(1000)]
COUNTERS = [damaged_counter(random.Random(seed)) for seed in range(1000)]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Prometheus that holds `SETS` and `COUNTERS`."""
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        pytest.skip("no Prometheus here")
    folder = tmp_path_factory.mktemp("prometheus")
    lines = ["# TYPE h unknown"]
    for case, buckets in enumerate(SETS):
        for bound, count in buckets.items():
            lines.append(f'h{{case="{case}",le="{"+Inf" if bound == math.inf else bound}"}} {count!r} {NOON_S}')
    lines.append("# TYPE c unknown")
    for case, (times, values) in enumerate(COUNTERS):
        lines += [f'c{{case="{case}"}} {value!r} {NOON_S + at:.3f}' for at, value in zip(times, values, strict=True)]
    (folder / "samples.txt").write_text("\n".join([*lines, "# EOF"]) + "\n")
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    make = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "samples.txt", "data"]
    subprocess.run(make, cwd=folder, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _until_ready(url, process, folder / "log")
            yield Server(url)
        finally:
            process.terminate()


def _until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.9, 0.99, 1.0, -0.1, 1.1])
def test_a_quantile_is_prometheus_s(prometheus, q):
    theirs = prometheus.ask(f"histogram_quantile({q}, h)", NOON_S)
    for case, buckets in enumerate(SETS):
        mine = histogram_quantile(q, buckets)
        assert mine == pytest.approx(theirs[str(case)], rel=1e-12, nan_ok=True), buckets


@pytest.mark.slow
@pytest.mark.parametrize("range_s", [20, 60, 300, 900])
@pytest.mark.parametrize("at_s", [0, 59.9, 300, 451.3, 700])
def test_rates_and_increases_are_prometheus_s(prometheus, range_s, at_s):
    for name, ours in (("increase", increase), ("rate", rate)):
        theirs = prometheus.ask(f"{name}(c[{range_s}s])", NOON_S + at_s)
        for case, (times, values) in enumerate(COUNTERS):
            mine = ours(times, values, at_s, range_s)
            assert (mine is None) == (str(case) not in theirs), (times, values)
            assert mine is None or mine == pytest.approx(theirs[str(case)], rel=1e-9), (times, values)


def test_version_3_forgives_rounding_and_leaves_the_first_instant_out():
    buckets = {1.0: 20.0, 10.0: 20.0, 20.0: 20.0 * (1 + 1e-15), math.inf: 20.0 * (1 + 1e-15)}
    assert histogram_quantile(1.0, buckets) == 20.0, "a request of at most 1 s is read as one of 20 s"
    assert histogram_quantile(1.0, buckets, version=3) == 1.0
    times, values = [0.0, 15.0, 30.0, 45.0, 60.0], [0.0, 10.0, 20.0, 30.0, 40.0]
    assert increase(times, values, 60.0, 60.0) == 40.0
    assert increase(times, values, 60.0, 60.0, version=3) == 40.0, "stretched by the interval that is missing"
    assert increase(times[:2], values[:2], 15.0, 15.0, version=3) is None


def test_a_fleet_s_percentile_is_that_of_the_sum():
    replicas = [{1.0: 9990.0, 10.0: 10000.0, math.inf: 10000.0}, {1.0: 0.0, 10.0: 100.0, math.inf: 100.0}]
    mean = sum(histogram_quantile(0.99, each) for each in replicas) / 2
    whole = histogram_quantile(0.99, sum_buckets(replicas))
    assert whole == pytest.approx(1 + 9 * (0.99 * 10100 - 9990) / 110)
    assert mean > 3 * whole
    with pytest.raises(ValueError, match="the same bounds"):
        sum_buckets([{1.0: 1.0, math.inf: 1.0}, {2.0: 1.0, math.inf: 1.0}])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: histogram_quantile(0.5, {1.0: 1.0, math.inf: 1.0}, version=1), "version must be 2 or 3"),
        (lambda: histogram_quantile(0.5, {math.nan: 1.0, math.inf: 1.0}), "numbers; got NaN"),
        (lambda: increase([1, 2], [1], 3, 2), "two lists of one length"),
        (lambda: increase([2, 1], [1, 2], 3, 2), "must rise"),
        (lambda: increase([1, 2], [1, 2], 3, 0), "range_s must be"),
        (lambda: sum_buckets([]), "at least one"),
    ],
)
def test_bad_input_is_named(call, said):
    with pytest.raises(ValueError, match=said):
        call()
