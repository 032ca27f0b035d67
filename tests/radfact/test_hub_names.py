"""Names of models on the Hub, told from paths."""

from pathlib import Path

import pytest

from radfact.io.hub import parse_hub_name, snapshot_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name", ("org/name", None)),
        ("org/name@v1.0", ("org/name", "v1.0")),
        ("org/name@refs/pr/1", ("org/name", "refs/pr/1")),
        ("name", None),
        ("./org/name", None),
        ("../name", None),
        ("/org/name", None),
        ("~/name", None),
        ("a/b/c", None),
        ("here/none", None),
    ],
)
def test_a_name_is_told_from_a_path(
    name: str, expected: tuple[str, str | None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_hub_name(name) == expected
    assert parse_hub_name(Path(name)) == parse_hub_name(str(Path(name)))


def test_a_snapshot_in_the_cache_has_its_name() -> None:
    assert snapshot_name(Path("cache/models--org--my-name/snapshots/abc")) == ("org/my-name", "abc")
    assert snapshot_name(Path("checkpoints/phantom")) is None
