"""A saved run comes back as it was, a file that isn't one is named as such, and two runs compare by what differs."""

from __future__ import annotations

import dataclasses
import json
import math
import zipfile

import numpy as np
import pytest
import servinglab as sl
from servinglab.hardware import catalog
from servinglab.result import save
from servinglab.result.log import Segments
from servinglab.result.setup import RunSetup
from servinglab.workload.lengths import Geometric

CHAT = sl.poisson(40, 200, seed=3, prompt_tokens=60, output_tokens=Geometric(90))
STEP = sl.AffineStep(0.01, 1e-4, 1e-5, 1e-8)


def preempting():
    return sl.simulate(CHAT, sl.ContinuousBatching(32, 128), STEP, kv=sl.Blocks(100))


def rejecting():
    return sl.simulate(CHAT, sl.ContinuousBatching(32, max_model_len=200), STEP)


def on_a_roof():
    step = sl.roofline("qwen3-30b-a3b", "h100-sxm", tensor_parallel=2, interconnect_gb_s=math.inf)
    cache = sl.kv_cache("qwen3-30b-a3b", "h100-sxm", tensor_parallel=2, other_gib=5.5)
    served = sl.simulate(CHAT, sl.ContinuousBatching(16), step.sides(), kv=cache)
    return dataclasses.replace(served, setup=dataclasses.replace(served.setup, roofline=step))


def many_pots():
    return sl.simulate(CHAT, sl.StaticBatching(7, last="never"), STEP, pots=None)


def measured():
    served = preempting()
    return dataclasses.replace(
        served, segments=None, step_time=None, setup=RunSetup.of({"engine": "v1", "seats": np.int64(4)})
    )


def nobody_finished():
    return sl.simulate(CHAT.head(3), sl.StaticBatching(8, last="never"), STEP)


RUNS = [preempting, rejecting, on_a_roof, many_pots, measured, nobody_finished]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.npz"


def assert_same(a, b):
    for field in dataclasses.fields(sl.Result):
        was, is_now = getattr(a, field.name), getattr(b, field.name)
        if isinstance(was, np.ndarray):
            assert was.dtype == is_now.dtype, field.name
            assert np.array_equal(was, is_now), field.name
        elif isinstance(was, Segments):
            for column in dataclasses.fields(Segments):
                x, y = getattr(was, column.name), getattr(is_now, column.name)
                assert x.dtype == y.dtype, column.name
                assert np.array_equal(x, y), column.name
        elif field.name == "late_gaps":
            assert len(was) == len(is_now)
            assert all(np.array_equal(x, y) for x, y in zip(was, is_now, strict=True))
        else:
            assert was == is_now, field.name


@pytest.mark.parametrize("make", RUNS)
def test_a_run_comes_back_equal_in_every_column(file, make):
    run = make()
    sl.save_run(run, file)
    again = sl.read_run(file)
    assert_same(run, again)
    slo = {"ttft_s": 1.0, "tpot_s": 0.02}
    assert digits(again.summary(slo).to_dict()) == digits(run.summary(slo).to_dict())
    assert str(again.summary(slo)) == str(run.summary(slo))
    if run.segments is not None:
        assert np.array_equal(again.steps().end_ns, run.steps().end_ns)


def test_the_runs_above_have_what_could_get_lost():
    assert preempting().preemptions.sum() > 0
    assert len(preempting().late_gaps[0]) > 1
    assert len(rejecting().rejections) > 1
    assert (many_pots().finish_ns == -1).any()


def test_objects_of_the_library_come_back_as_themselves(file):
    own = dataclasses.replace(catalog.model("llama-3.1-8b"), id="mine", aliases=("my-own",))
    objects = {
        "a": sl.StaticBatching(4, last="partial"),
        "b": sl.DynamicBatching(4, 0.5),
        "c": sl.ContinuousBatching(8, 64, policy="priority", watermark=0.02, max_model_len=40),
        "d": sl.RoofStep(sl.AffineStep(0.1, 0), sl.AffineStep(0, 0.2)),
        "e": sl.Blocks(7, 32),
        "f": sl.kv_cache(own, "h200-sxm", gpu_memory_utilization=0.7),
        "g": own,
        "h": {"@": 1, 5: [None, True, (2, math.inf)]},
        "i": {"kind": "Blocks"},
        "j": sl.LengthBucketedBatching(4, 0.5, edges=[128, 512]),
    }
    sl.save_run(dataclasses.replace(nobody_finished(), setup=RunSetup.of(objects)), file)
    again = sl.read_run(file).setup.told()
    assert again == objects
    assert again["f"].usable_blocks == objects["f"].usable_blocks
    assert again["f"].change(gpu_memory_utilization=0.9) == objects["f"].change(gpu_memory_utilization=0.9)


def double(requests, prefill_tokens, kv_tokens):
    return 0.01 + 0.001 * requests


def test_a_step_time_of_ones_own_comes_back_as_its_name(file):
    with pytest.warns(UserWarning, match="step by step"):
        run = sl.simulate(CHAT.head(40), sl.ContinuousBatching(8), double)
    sl.save_run(run, file)
    again = sl.read_run(file)
    assert again.step_time is None
    assert again.setup.step_time == "double"
    assert again.summary().to_dict() == run.summary().to_dict()


class Pool:
    usable_blocks, block_size = 100, 16


def test_a_pool_of_ones_own_comes_back_as_text(file):
    run = sl.simulate(CHAT, sl.ContinuousBatching(32, 128), STEP, kv=Pool())
    sl.save_run(run, file)
    again = sl.read_run(file)
    assert isinstance(again.setup.kv, str)
    assert run.summary().kv_blocks == 100
    assert again.summary().kv_blocks is None
    assert again.summary().preemptions == run.summary().preemptions > 0


def test_a_file_is_small(file):
    """A column of a million equal numbers costs next to nothing."""
    run = preempting()
    sl.save_run(run, file)
    held = sum(getattr(run, name).nbytes for name in save._REQUESTS)
    held += sum(getattr(run.segments, name).nbytes for name in save._SEGMENTS)
    assert file.stat().st_size < held / 2


# Files that aren't runs


def digits(told):
    """Twelve digits of each number: a log that was read sums the line's seconds in another order."""
    return json.loads(json.dumps(told), parse_float=lambda text: f"{float(text):.12g}")


def change_about(file, **changes):
    """Write the file again with another description."""
    with np.load(file) as archive:
        arrays = dict(archive)
    about = json.loads(arrays["about"].tobytes()) | changes
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with open(file, "wb") as out:
        np.savez(out, **arrays)


def test_a_run_from_another_version_says_so(file):
    run = preempting()
    sl.save_run(run, file)
    change_about(file, servinglab="0.0.7")
    with pytest.warns(UserWarning, match=rf"run.npz was saved by servinglab 0.0.7; this is {sl.__version__}"):
        again = sl.read_run(file)
    assert_same(run, again)


def test_a_format_from_the_future_is_refused(file):
    sl.save_run(preempting(), file)
    change_about(file, servinglab="9.1", format_version=4)
    message = rf"run.npz was saved by servinglab 9.1 in format 4; servinglab {sl.__version__} reads formats 1 to 3"
    with pytest.raises(ValueError, match=message):
        sl.read_run(file)


def test_a_run_in_the_first_format_is_read(file):
    """It said what was run under ``description``, and where a measured run was from as ``measured``."""
    run = preempting()
    sl.save_run(run, file)
    with np.load(file) as archive:
        about = json.loads(archive["about"].tobytes())
    change_about(
        file, format_version=1, setup=None, description={**about["setup"], "measured": "a soup", "cook": "ada"}
    )
    again = sl.read_run(file)
    assert again.setup == dataclasses.replace(run.setup, source="a soup", facts={"cook": "ada"})


def test_a_run_saved_before_pairs_were_logged_is_read_and_does_not_claim_to_know_them(file):
    run = preempting()
    sl.save_run(run, file)
    change_about(file, format_version=2)
    with np.load(file) as archive:
        kept = {name: archive[name] for name in archive if name != "segments.prefill_pairs"}
    np.savez_compressed(file, **kept)
    again = sl.read_run(file)
    assert run.segments.prefill_pairs.max() > 0
    assert set(again.segments.prefill_pairs.tolist()) == {-1} and len(again.segments) == len(run.segments)
    assert again.summary().to_dict() == run.summary().to_dict()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "cake"}, "isn't a saved run: it doesn't say that it is one"),
        ({"setup": {"kv": {"@": "Barrel", "litres": 9}}}, "can't be read by .*: it holds a 'Barrel', which"),
        ({"setup": {"kv": {"@": "Blocks", "litres": 9}}}, "can't be read by .*litres"),
        ({"step_time": {"@": "AffineStep", "fixed_s": -1, "per_request_s": 0}}, "fixed_s must be a finite number >= 0"),
        ({"rejections": 5}, "can't be read by"),
    ],
)
def test_a_description_that_makes_no_sense(file, changes, message):
    sl.save_run(preempting(), file)
    change_about(file, **changes)
    with pytest.raises(ValueError, match=message):
        sl.read_run(file)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("requests.finish_ns", None, "requests.finish_ns is missing"),
        ("segments.steps", None, "segments.steps is missing"),
        ("late_gaps.tokens", None, "late_gaps.tokens is missing"),
        ("requests.finish_ns", np.zeros(3, np.int64), r"requests.finish_ns has int64 of shape \(3,\)"),
        ("requests.finish_ns", np.zeros(200), r"requests.finish_ns has float64 of shape \(200,\)"),
        ("requests.status", np.full(200, 77, np.uint8), "it has a status 77"),
        ("about", None, "isn't a saved run: it doesn't say that it is one"),
    ],
)
def test_columns_that_make_no_sense(file, name, column, message):
    sl.save_run(preempting(), file)
    with np.load(file) as archive:
        arrays = dict(archive)
    arrays.pop(name)
    if column is not None:
        arrays[name] = column
    with open(file, "wb") as out:
        np.savez(out, **arrays)
    with pytest.raises(ValueError, match=message):
        sl.read_run(file)


def test_files_of_other_kinds(tmp_path):
    text, empty, zipped = tmp_path / "a.csv", tmp_path / "b.npz", tmp_path / "c.zip"
    text.write_text("request,arrival_s\n0,0.0\n")
    empty.write_bytes(b"")
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("hello.txt", "hello")
    for path, what in ((text, "run: neither"), (empty, "run: neither"), (zipped, "saved run")):
        with pytest.raises(ValueError, match=rf"{path.name} isn't a {what}"):
            sl.read_run(path)
    with pytest.raises(FileNotFoundError):
        sl.read_run(tmp_path / "nowhere.npz")


def test_pickled_objects_are_never_loaded(file):
    """A pickle can run anything when it is read."""
    with open(file, "wb") as out:
        np.savez(out, about=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="isn't a saved run, or is damaged: Object arrays cannot be loaded"):
        sl.read_run(file)


def test_a_damaged_file(file):
    sl.save_run(preempting(), file)
    whole = file.read_bytes()
    for keep in (5, len(whole) // 2, len(whole) - 10):
        file.write_bytes(whole[:keep])
        with pytest.raises(ValueError, match=r"run.npz isn't a saved run, or is damaged"):
            sl.read_run(file)
    middle = len(whole) // 3
    file.write_bytes(whole[:middle] + bytes(40) + whole[middle + 40 :])
    with pytest.raises(ValueError, match=r"run\.npz"):
        sl.read_run(file)


# Comparing


def test_what_differs_in_the_settings():
    a = sl.simulate(CHAT, sl.ContinuousBatching(16, 256), STEP, kv=sl.Blocks(400))
    b = sl.simulate(CHAT, sl.ContinuousBatching(32, 256, watermark=0.1), sl.AffineStep(0.02, 1e-4, 1e-5, 1e-8))
    both = sl.compare_runs(a, b)
    assert both.settings == {
        "scheduler.max_num_seqs": (16, 32),
        "scheduler.watermark": (0.0, 0.1),
        "step_time.fixed_s": (0.01, 0.02),
        "kv": ("Blocks", None),
        "kv.usable_blocks": (400, None),
        "kv.block_size": (16, None),
    }
    assert ["scheduler.max_num_seqs", "16", "32"] in [line.split() for line in str(both).splitlines()]


def test_a_roofline_is_compared_by_its_facts():
    def run(accelerator):
        step = sl.roofline("llama-3.1-8b", accelerator)
        served = sl.simulate(CHAT, sl.ContinuousBatching(16), step.sides(), kv=sl.kv_cache("llama-3.1-8b", accelerator))
        return dataclasses.replace(served, setup=dataclasses.replace(served.setup, roofline=step))

    differs = sl.compare_runs(run("h100-sxm"), run("h200-sxm")).settings
    assert differs["roofline.accelerator"] == differs["kv.accelerator"] == ("h100-sxm", "h200-sxm")
    assert {name.split(".")[0] for name in differs} == {"roofline", "kv"}


def test_figures_and_their_change():
    a, b = (sl.simulate(CHAT, sl.ContinuousBatching(cap), STEP) for cap in (8, 32))
    both = sl.compare_runs(a, b, slo={"ttft_s": 1.0})
    x, y = a.summary({"ttft_s": 1.0}), b.summary({"ttft_s": 1.0})
    assert both.summaries == (x, y)
    figures = both.figures
    assert figures["ttft_s.p99"] == (x.ttft_s.p99, y.ttft_s.p99, y.ttft_s.p99 / x.ttft_s.p99 - 1)
    assert figures["request_goodput"][:2] == (x.request_goodput, y.request_goodput)
    assert figures["requests"] == (200, 200, 0.0)
    assert figures["preemptions"] == (0, 0, 0.0)
    assert figures["mean_kv_usage"] == (None, None, None)
    assert "ttft_s.p99" in str(both)
    assert "mean_kv_usage" not in str(both)
    assert json.loads(json.dumps(both.to_dict(), allow_nan=False))["figures"]["requests"]["b"] == 200


def test_a_change_from_nothing_is_undefined():
    calm, hard = sl.simulate(CHAT, sl.ContinuousBatching(32, 128), STEP, kv=sl.Blocks(9999)), preempting()
    both = sl.compare_runs(calm, hard)
    assert both.figures["preemptions"] == (0, int(hard.preemptions.sum()), None)
    line = next(line for line in str(both).splitlines() if line.startswith("preemptions"))
    assert line.split() == ["preemptions", "0", str(hard.preemptions.sum()), "–"]


def test_whether_the_requests_are_the_same():
    def against(work):
        runs = [sl.simulate(each, sl.ContinuousBatching(32), STEP) for each in (CHAT, work)]
        return sl.compare_runs(*runs).requests

    assert against(CHAT) == "the same arrivals and lengths"
    assert against(CHAT.scaled(2)) == "the same lengths, other arrivals"
    assert against(CHAT.head(199)).startswith("not the same")


def test_a_run_and_itself_differ_in_nothing(file):
    run = preempting()
    sl.save_run(run, file)
    both = sl.compare_runs(run, sl.read_run(file), names=("now", "then"))
    assert both.settings == {}
    assert all(change in (0.0, None) for _, _, change in both.figures.values())
    text = str(both)
    assert "A         now\nB         then\n" in text
    assert "no setting differs" in text
    assert "%" not in text
