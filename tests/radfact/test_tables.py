"""Tables read row by row, plain and packed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from radfact.errors import InputError
from radfact.tables import stream_columns


def test_columns_are_streamed_in_the_order_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b,c\n1," 2 ",NaN\n\n"x\ny",,3\n', encoding="utf-8-sig")
    assert list(stream_columns(path, ("c", "a"), ("none",))) == [(2, (None, "1", None)), (4, ("3", "x\ny", None))]


@pytest.mark.parametrize(("content", "message"), [(b"a\n\xff\n", "not UTF-8 text"), (b"", "it has no header")])
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
    with pytest.raises(InputError, match="holds 2 CSV files"):
        list(stream_columns(path, ("a",)))
