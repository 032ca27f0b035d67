"""Tables read row by row, plain and packed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import yaml

from radfact.errors import InputError
from radfact.io.csv_tables import stream_columns

CASES = yaml.safe_load(Path(__file__).with_name("invalid_tables.yaml").read_text("utf-8"))


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
