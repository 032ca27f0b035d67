from pathlib import Path
from typing import Any

import pytest
from error_checks import raises

from maira.data.sources.table_records import TableRecord


@pytest.mark.parametrize(
    ("cell", "texts"),
    [
        (["a.png", None], ["a.png", None]),
        ('["a.png", "b.png"]', ["a.png", "b.png"]),
        ("['a.png' 'b.png']", ["a.png", "b.png"]),
        ("['a.png'\n 'b.png',]", ["a.png", "b.png"]),
        ("a b.png", ["a b.png"]),
        ("[]", []),
        ("nan", []),
        ("['a.png'", None),
        ("a.png, b.png", None),
        ("['a'b']", None),
        (["a.png", 3], None),
        ({"path": "a.png"}, None),
        (True, None),
    ],
)
def test_lists_in_a_cell_have_three_notations(cell: Any, texts: list[str | None] | None) -> None:
    record = TableRecord(Path("t.csv"), {"images": cell}, line=4)
    if texts is None:
        with raises("t.csv:4: images: invalid-value"):
            record.texts("images")
    else:
        assert record.texts("images") == texts
