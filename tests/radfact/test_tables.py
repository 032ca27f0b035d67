"""Tables read row by row, plain and packed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from radfact.errors import InputError
from radfact.io.csv_tables import stream_columns


def test_columns_are_streamed_in_the_order_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b,c\n1," 2 ",NaN\n\n"x\ny",,3\n', encoding="utf-8-sig")
    assert list(stream_columns(path, ("c", "a"), ("none",))) == [(2, (None, "1", None)), (4, ("3", "x\ny", None))]
    # Columns without a name may be many.
    path.write_text('"b; c; d",a,,\n1,2,,\n')
    assert list(stream_columns(path, ("a", "b; c; d"))) == [(2, ("2", "1"))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\n\xff\n", r":2: not UTF-8 text .*; save the table as CSV UTF-8"),
        (b'a\n1\n"2\n3\xff"\n', r":4: not UTF-8 text"),
        (b"a\n" + b"1\n" * 9000 + b"\xff\n", r":9002: not UTF-8 text"),
        ("a\n1\n".encode("utf-16"), r":1: not UTF-8 text"),
        (b"\xef\xbb\xbfa;b\n1;2\n", r":1: separated by semicolons; save the table as CSV separated by commas"),
        (b'"a"\t"b"\n', r":1: separated by tabs"),
        (b"a;b, c;d\n1;2;3\n", r":1: separated by semicolons"),
        (b"b,a,c,a\n1,2,3,4\n", r":1: a: expected one column"),
        (b"SQLite format 3\0\x10", "found an SQLite database"),
        (b"", "found no header"),
        (b"a,b\n1\n", r":2: expected 2 cells as in the header, found 1"),
        (b'a,b\n1,"x\ny"\n2,x,y\n', r":4: expected 2 cells as in the header, found 3"),
        (b'a\n1\n"never closed\n3\n', r":3: not CSV"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
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
