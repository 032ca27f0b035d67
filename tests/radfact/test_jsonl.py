import math
import resource
import stat
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from error_checks import raises, raises_code
from hypothesis import given
from hypothesis import strategies as st

from radfact.errors import ErrorCode, InputError
from radfact.io.csv_tables import stream_columns
from radfact.io.jsonl import append_jsonl, dumps, read_json, read_jsonl, write_json, write_jsonl

CASES = yaml.safe_load(Path(__file__).with_name("invalid_tables.yaml").read_text("utf-8"))
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
# Half of a surrogate pair is no text that a UTF-8 file could hold.
encodable = st.text(alphabet=st.characters(codec="utf-8"))


@given(rows=st.lists(st.dictionaries(encodable, encodable | st.integers() | st.none(), max_size=4), max_size=5))
def test_written_rows_are_read_unchanged(
    rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    assert write_jsonl(path, rows) == len(rows)
    assert [row for _, row in read_jsonl(path)] == rows


@given(value=json_values)
def test_a_json_line_has_no_line_break(value: object) -> None:
    assert "\n" not in dumps(value)


def test_lines_are_those_of_editors_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "x\u2028y"}\n\n{"a": 2}\n', encoding="utf-8-sig")
    assert list(read_jsonl(path)) == [(1, {"a": "x\u2028y"}), (3, {"a": 2})]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_non_finite_number_is_refused_and_keeps_the_old_file(number: float, tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    write_json(path, {"point": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"point": number})
    assert read_json(path) == {"point": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, int]]:
        yield {"a": 1}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_jsonl(tmp_path / "rows.jsonl", rows())
    assert list(tmp_path.iterdir()) == []


def test_written_files_are_private(tmp_path: Path) -> None:
    write_json(tmp_path / "new" / "scores.json", {})
    append_jsonl(tmp_path / "new" / "rows.jsonl", [{}])
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"new": 0o700, "scores.json": 0o600, "rows.jsonl": 0o600}


TOO_MUCH = ["[" * 100_000, '{"a": ' + "9" * 5_000 + "}"]


@pytest.mark.parametrize(
    ("content", "where"), [*CASES["lines"], *((text, ":1: not JSON that can be read") for text in TOO_MUCH)]
)
def test_invalid_lines_are_named(content: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        list(read_jsonl(path))
    assert str(path) in str(caught.value)
    assert where in str(caught.value)


def test_a_missing_document_is_named(tmp_path: Path) -> None:
    with raises_code(ErrorCode.FILE_NOT_FOUND, file=tmp_path / "pairs.json"):
        read_json(tmp_path / "pairs.json")


@pytest.mark.parametrize(("content", "error"), CASES["documents"])
def test_an_invalid_document_is_refused(content: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.json").write_text(content)
    with raises(f"pairs.json:{error}"):
        read_json(tmp_path / "pairs.json")


@contextmanager
def _full_disk() -> Iterator[None]:
    """No file can grow beyond 100 bytes; not for longer than it must, since pytest's own log is a file too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", [write_jsonl, append_jsonl])
def test_a_full_disk_error_names_the_file(write: Callable[[Path, Any], object], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with _full_disk(), pytest.raises(OSError, match="cannot be written: File too large") as caught:
        write(path, [{"text": "x" * 200}])
    assert caught.value.filename == str(path)
    assert [item for item in tmp_path.iterdir() if write is write_jsonl] == []


@pytest.mark.parametrize("name", ["file/rows.jsonl", "file/folder/rows.jsonl", "r" * 250])
def test_a_file_that_cannot_be_created_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match="cannot be written: ") as caught:
        write_json(tmp_path / name, {})
    assert caught.value.filename == str(tmp_path / name)


def test_errors_of_other_files_are_not_changed(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"text": (tmp_path / "none.txt").read_text()}

    with pytest.raises(FileNotFoundError) as caught:
        write_jsonl(tmp_path / "rows.jsonl", rows())
    assert caught.value.filename == str(tmp_path / "none.txt")


# Tables read row by row, plain and packed


def test_columns_are_streamed_in_the_order_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b,c\n1," 2 ",NaN\n\n"x\ny",,3\n', encoding="utf-8-sig")
    assert list(stream_columns(path, ("c", "a"), ("none",))) == [(2, (None, "1", None)), (4, ("3", "x\ny", None))]
    # Columns without a name may be many.
    path.write_text('"b; c; d",a,,\n1,2,,\n')
    assert list(stream_columns(path, ("a", "b; c; d"))) == [(2, ("2", "1"))]


@pytest.mark.parametrize(
    ("content", "message"), [*CASES["tables"], ("a\n" + "1\n" * 9000 + "\xff\n", r":9002: not UTF-8 text")]
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        list(stream_columns(path, ("a",)))


def test_a_zip_of_two_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("a.csv", "a\n1\n")
        packed.writestr("__MACOSX/._a.csv", "")
    assert [cells for _, cells in stream_columns(path, ("a",))] == [("1",)]
    with zipfile.ZipFile(path, "a") as packed:
        packed.writestr("b.csv", "a\n1\n")
    with pytest.raises(InputError, match="expected one CSV file, found 2"):
        list(stream_columns(path, ("a",)))
