"""Trace readers: to the nanosecond, whatever the packaging; every malformed row named by file and line."""

from __future__ import annotations

import gzip
import json
from datetime import datetime, timedelta

import numpy as np
import pytest
import servinglab as sl
from hypothesis import example, given
from hypothesis import strategies as st

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109"]
AZURE = "\n".join([HEADER, *ROWS]) + "\n"
MOONCAKE = (
    '{"timestamp": 27, "input_length": 600, "output_length": 6, "hash_ids": [0, 1]}\n'
    '{"timestamp": 27, "input_length": 600, "output_length": 4, "hash_ids": [0, 2]}\n'
    '{"timestamp": 3027.25, "input_length": 10, "output_length": 1, "hash_ids": []}\n'
)


@pytest.fixture
def read(tmp_path):
    def read(content, name="trace.csv"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return sl.read_trace(file)

    return read


def test_azure(read):
    work = read(AZURE)
    assert work.arrival_s.tolist() == [0, 4.314579]
    assert work.prompt_tokens.tolist() == [374, 396]
    assert work.output_tokens.tolist() == [44, 109]
    assert work.prefix_hashes is None
    assert not work.is_closed
    assert work.name == "trace.csv"


def test_offsets_are_subtracted_row_by_row(read):
    stamps = [
        "2024-05-11 00:15:46.5+05:30",
        "2024-05-10 18:45:47Z",
        "2024-05-10 11:45:47.25-07:00",
        "2024-05-10 18:45:48",
    ]
    assert read(azure(*(f"{stamp},1,1" for stamp in stamps))).arrival_s.tolist() == [0, 0.5, 0.75, 1.5]


def test_mooncake(read):
    work = read(MOONCAKE, "trace.jsonl")
    assert work.arrival_s.tolist() == [0, 0, 3.00025]
    assert work.prompt_tokens.tolist() == [600, 600, 10]
    assert work.output_tokens.tolist() == [6, 4, 1]
    assert [row.tolist() for row in work.prefix_hashes] == [[0, 1], [0, 2], []]
    bare = read('{"timestamp": 1, "input_length": 2, "output_length": 3}')
    assert bare.prefix_hashes is None


@pytest.mark.parametrize(
    "content",
    [
        AZURE.replace("\n", "\r\n"),
        AZURE.replace("\n", "\r"),
        AZURE.rstrip("\n"),
        "\n" + AZURE.replace("\n", "\n\n") + "  \n",
        b"\xef\xbb\xbf" + AZURE.encode(),
        gzip.compress(AZURE.encode()),
        gzip.compress(b"\xef\xbb\xbf" + AZURE.replace("\n", "\r\n").encode()),
        AZURE.replace(",", " , "),
        AZURE.replace("374", '"374"'),
        AZURE.replace("374", "374.0"),
        AZURE.replace(" 18:", "T18:").replace(",3", "Z,3"),
        AZURE.replace(",3", "+00:00,3"),
        AZURE.replace(" 18:15", " 20:45").replace(",3", "+02:30,3"),
        "GeneratedTokens,Model,TIMESTAMP,ContextTokens\n"
        "44,x,2023-11-16 18:15:46.6805900,374\n109,y,2023-11-16 18:15:50.9951690,396\n",
    ],
    ids=[
        "CRLF", "CR", "no last newline", "blank lines", "BOM", "gzip", "gzip BOM CRLF", "spaces", "quotes",
        "decimals", "T and Z", "UTC offset", "offset", "other columns",
    ],
)  # fmt: skip
def test_packaging_makes_no_difference(read, content):
    plain, packed = read(AZURE), read(content, "packed")
    for column in ("arrival_s", "prompt_tokens", "output_tokens"):
        assert getattr(packed, column).tolist() == getattr(plain, column).tolist()


@given(
    st.lists(st.integers(0, 7 * 86_400 * 10**9), min_size=1, max_size=20).map(sorted),
    st.sampled_from([7, 9]),
    st.integers(1, 9999),
)
@example([0, 1, 60 * 10**9 - 1, 86_400 * 10**9 - 1, 86_400 * 10**9], 9, 2024)
def test_no_nanosecond_is_lost(tmp_path_factory, arrivals_ns, decimals, year):
    """Over a week with the end of a February in it, the nanoseconds that were written come back."""
    unit = 10 ** (9 - decimals)
    arrivals_ns = [t // unit * unit for t in arrivals_ns]
    midnight = datetime(year, 2, 27)
    lines = [HEADER]
    for t in arrivals_ns:
        moment = (midnight + timedelta(seconds=t // 10**9)).isoformat(" ")
        lines.append(f"{moment}.{t % 10**9 // unit:0{decimals}},10,5")
    file = tmp_path_factory.mktemp("nano") / "t.csv"
    file.write_text("\n".join(lines))
    back = np.rint(sl.read_trace(file).arrival_s * 1e9).astype(int)
    assert back.tolist() == [t - arrivals_ns[0] for t in arrivals_ns]


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=20).map(sorted))
def test_no_nanosecond_of_a_millisecond_is_lost(tmp_path_factory, arrivals_ns):
    rows = (f'{{"timestamp": {t // 10**6}.{t % 10**6:06}, "input_length": 1, "output_length": 1}}' for t in arrivals_ns)
    file = tmp_path_factory.mktemp("nano") / "t.jsonl"
    file.write_text("\n".join(rows))
    back = np.rint(sl.read_trace(file).arrival_s * 1e9).astype(int)
    assert back.tolist() == [t - arrivals_ns[0] for t in arrivals_ns]


def azure(*rows):
    return "\n".join([HEADER, *rows])


def mooncake(**changes):
    row = {"timestamp": 5, "input_length": 3, "output_length": 2, **changes}
    return json.dumps({key: value for key, value in row.items() if value is not ...})


FIRST = mooncake(timestamp=1)
MALFORMED = {
    "empty": ("", 1, "the file is empty"),
    "only blanks": ("\n \n\r\n", 1, "the file is empty"),
    "header only": (HEADER + "\n", 1, "the header is all there is"),
    "other text": ("hello\nworld", 1, "the first line is neither the Azure header .* 'hello'"),
    "no header": (ROWS[0], 1, "the first line is neither the Azure header"),
    "JSON array": (f"[{FIRST}]", 1, "the first line is neither"),
    "missing column": (
        "TIMESTAMP,ContextTokens\n1,2",
        1,
        "the header must have the column GeneratedTokens once",
    ),
    "double column": (HEADER + ",TIMESTAMP\n", 1, "the header must have the column TIMESTAMP once"),
    "field missing": (
        azure(ROWS[0], "2023-11-16 18:15:50,396"),
        3,
        "the row must have 3 fields, as the header",
    ),
    "field too many": (azure(ROWS[0] + ",7"), 2, "the row must have 3 fields"),
    "cut off": (AZURE[:82], 3, "the row must have 3 fields, as the header; got '2023-11'"),
    "open quote": (azure('2023-11-16 18:15:46,"374,44', ROWS[1]), 2, "the row isn't CSV"),
    "no number": (
        azure("2023-11-16 18:15:46,many,44"),
        2,
        "ContextTokens must be a whole number .* got 'many'",
    ),
    "empty number": (azure("2023-11-16 18:15:46,,44"), 2, "ContextTokens must be a whole number .* got ''"),
    "NaN": (azure("2023-11-16 18:15:46,374,NaN"), 2, "GeneratedTokens must be a whole number .* got 'NaN'"),
    "half a token": (
        azure("2023-11-16 18:15:46,374,4.5"),
        2,
        "GeneratedTokens must be a whole number .* got '4.5'",
    ),
    "exponent": (azure("2023-11-16 18:15:46,1e3,4"), 2, "ContextTokens must be .* got '1e3'"),
    "underscore": (azure("2023-11-16 18:15:46,1_000,4"), 2, "ContextTokens must be .* got '1_000'"),
    "other digits": (azure("2023-11-16 18:15:46,٣,4"), 2, "ContextTokens must be"),
    "negative": (
        azure("2023-11-16 18:15:46,-1,44"),
        2,
        "ContextTokens must be a whole number from 0 .* got -1",
    ),
    "no answer": (
        azure(ROWS[0], "2023-11-16 18:15:50,7,0"),
        3,
        "GeneratedTokens must be .* from 1 to .* got 0",
    ),
    "huge": (azure("2023-11-16 18:15:46,9999999999,4"), 2, "ContextTokens must be .* got 9999999999"),
    "long number": (azure(f"2023-11-16 18:15:46,{'9' * 5000},4"), 2, "ContextTokens must be"),
    "no time": (azure("yesterday,374,44"), 2, "TIMESTAMP must be a time such as .* got 'yesterday'"),
    "NaN time": (azure("nan,374,44"), 2, "TIMESTAMP must be a time"),
    "negative time": (azure("-2023-11-16 18:15:46,374,44"), 2, "TIMESTAMP must be a time"),
    "no such day": (azure("2023-02-30 18:15:46,374,44"), 2, "TIMESTAMP must be a time"),
    "no such offset": (azure("2023-11-16 18:15:46+24:00,374,44"), 2, "TIMESTAMP must be a time"),
    "no such hour": (azure("2023-11-16 24:00:00,374,44"), 2, "TIMESTAMP must be a time"),
    "ten decimals": (azure("2023-11-16 18:15:46.0123456789,374,44"), 2, "TIMESTAMP must be a time"),
    "back in time": (
        azure(ROWS[1], ROWS[0]),
        3,
        "the time must not go back; it is 4.314579 s before .* line 2",
    ),
    "back, though not to the start": (
        azure(ROWS[0], ROWS[1], "2023-11-16 18:15:50.9951689,1,1"),
        4,
        "it is 1E-7 s before that of line 3",
    ),
    "back a tick": (
        azure("2023-11-16 18:15:46.0000001,1,1", "", "2023-11-16 18:15:46.0000000,1,1"),
        4,
        "it is 1E-7 s before that of line 2",
    ),
    "centuries": (azure("1823-11-16 18:15:46,1,1", ROWS[0]), 3, r"the trace must span at most 4e\+09 s"),
    "not text": (AZURE.encode() + b"\xff\xfe", 4, "the file must be UTF-8 text"),
    "UTF-16": (AZURE.encode("utf-16"), 1, "the file must be UTF-8 text"),
    "cut gzip": (gzip.compress(AZURE.encode())[:-12], 1, "the gzip file is damaged or cut off"),
    "damaged gzip": (
        gzip.compress(AZURE.encode())[:20] + b"xxxxxxxx",
        1,
        "the gzip file is damaged or cut off",
    ),
    "empty gzip": (gzip.compress(b""), 1, "the file is empty"),
    "cut JSON": (f"{FIRST}\n{FIRST[:-9]}", 2, "the line must be one whole JSON object"),
    "two objects": (f"{FIRST} {FIRST}", 1, "the line must be one whole JSON object"),
    "not an object": (f"{FIRST}\n[1, 2]", 2, r"the line must be one JSON object; got '\[1, 2\]'"),
    "deep": (f"{FIRST}\n{'[' * 200_000}", 2, "the line must be one whole JSON object"),
    "absurd exponent": (
        mooncake(timestamp=7).replace("7", "1e99999999999999999999"),
        1,
        "JSON object|timestamp",
    ),
    "long JSON number": (
        mooncake(timestamp=7).replace("7", "7" * 5000),
        1,
        "the line must be one whole JSON object",
    ),
    "no timestamp": (mooncake(timestamp=...), 1, "the object must have the key timestamp"),
    "no length": (mooncake(output_length=...), 1, "the object must have the key output_length"),
    "JSON NaN time": (mooncake(timestamp=float("nan")), 1, "timestamp must be a number of ms .* got NaN"),
    "infinite time": (
        mooncake(timestamp=float("inf")),
        1,
        "timestamp must be a number of ms .* got Infinity",
    ),
    "JSON negative time": (mooncake(timestamp=-1), 1, "timestamp must be a number of ms from 0 .* got -1"),
    "text time": (mooncake(timestamp="1"), 1, "timestamp must be a number of ms .* got '1'"),
    "true time": (mooncake(timestamp=True), 1, "timestamp must be a number of ms .* got True"),
    "null length": (mooncake(input_length=None), 1, "input_length must be a whole number from 0 .* got None"),
    "JSON no answer": (mooncake(output_length=0), 1, "output_length must be a whole number from 1 .* got 0"),
    "JSON half token": (mooncake(output_length=1.5), 1, "output_length must be a whole number .* got 1.5"),
    "JSON back in time": (
        f"{mooncake()}\n{FIRST}",
        2,
        "the time must not go back; it is 0.004 s before .* line 1",
    ),
    "hashes no list": (mooncake(hash_ids=5), 1, "hash_ids must be a list of whole numbers; got 5"),
    "hash no number": (mooncake(hash_ids=[1, "a"]), 1, r"hash_ids\[1\] must be a whole number .* got 'a'"),
    "hashes in some": (f"{FIRST}\n{mooncake(hash_ids=[1])}", 2, "hash_ids must be in every row or in none"),
}


@pytest.mark.parametrize(("content", "line", "message"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_trace_is_named_by_file_and_line(read, tmp_path, content, line, message):
    with pytest.raises(sl.TraceError, match=message) as caught:
        read(content)
    assert caught.value.line == line
    assert caught.value.path == str(tmp_path / "trace.csv")
    assert str(caught.value).startswith(f"{tmp_path / 'trace.csv'}:{line}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value, ValueError)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        sl.read_trace(tmp_path / "nowhere.csv")


def read_or_refuse(folder, data):
    """Whatever comes in, out comes a sound workload or a TraceError."""
    file = folder / "fuzz"
    file.write_bytes(data)
    try:
        work = sl.read_trace(file)
    except sl.TraceError as error:
        assert error.line >= 1
        return
    assert work.arrival_s[0] == 0
    assert (np.diff(work.arrival_s) >= 0).all()
    assert (work.output_tokens >= 1).all()


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory, data):
    read_or_refuse(tmp_path_factory.getbasetemp(), data)
    read_or_refuse(tmp_path_factory.getbasetemp(), gzip.compress(data))


@given(
    st.sampled_from([AZURE.encode(), MOONCAKE.encode(), gzip.compress(AZURE.encode())]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.binary(max_size=4)), min_size=1, max_size=5),
)
def test_damaged_traces(tmp_path_factory, data, damages):
    for at, cut, insert in damages:
        data = data[:at] + insert + data[at + cut :]
    read_or_refuse(tmp_path_factory.getbasetemp(), data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids", "extra"]),
            json_values | st.integers(0, 100),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_json(tmp_path_factory, rows):
    read_or_refuse(tmp_path_factory.getbasetemp(), "\n".join(map(json.dumps, rows)).encode())


csv_fields = st.sampled_from(["2023-11-16 18:15:46.6805900", "5", "0", "-3", "1.0", "nan", "", '"', '"7"']) | st.text(
    max_size=6
)


@given(st.lists(st.lists(csv_fields, min_size=1, max_size=4), max_size=4))
def test_any_csv(tmp_path_factory, rows):
    text = "\n".join([HEADER, *(",".join(fields) for fields in rows)])
    read_or_refuse(tmp_path_factory.getbasetemp(), text.encode("utf-8", "surrogatepass"))
