"""Training shards: packing, random access, resuming and reading from a URL."""

import pickle
import tarfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from error_checks import raises
from maira_command import maira
from PIL import Image

from maira.data.manifest import Failure, read_failures, read_manifest, write_manifest
from maira.data.shards import INDEX, Shards, pack, parse_size
from maira.data.study import IMAGE_COLUMNS, Study
from radfact.errors import ExitCode
from radfact.records import Box, Sentence


def _png(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (48, 56), np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine samples: the three samples of each study share a lateral; the last ones have boxes and phrases."""
    folder = tmp_path_factory.mktemp("prepared")
    box = Box(x_min=0.1, y_min=0.2, x_max=0.3, y_max=0.4)
    studies = []
    for number in range(9):
        _png(folder / f"frontal/{number}.png", number)
        _png(folder / f"lateral/{number // 3}.png", 100 + number // 3)
        studies.append(
            Study(
                sample_id=f"Überweisung/{number}",
                study_id=f"study {number // 3}",
                frontal=Path(f"frontal/{number}.png"),
                lateral=Path(f"lateral/{number // 3}.png") if number % 2 else None,
                prior_frontal=Path(f"frontal/{number - 1}.png") if number % 3 else None,
                findings=None if number > 6 else f"Lungs \u2028 clear {number}.",
                grounded_findings=[Sentence(text="Effusion.", boxes=(box,))] if number > 5 else None,
                phrases=[Sentence(text="Nodule.", boxes=(box,))] * 2 if number == 8 else None,
                split="test" if number < 3 else "train",
                source="a" if number % 2 else None,
            )
        )
    write_manifest(folder / "manifest.jsonl", studies)
    return folder / "manifest.jsonl"


@pytest.fixture(scope="module")
def packed(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "shards"
    pack(manifest, out, shard_size=20_000)
    return out


def test_images_are_packed_byte_for_byte_and_indexed_by_split_source_and_reports(manifest: Path, packed: Path) -> None:
    shards = Shards(packed)
    for number, study in reversed([*enumerate(read_manifest(manifest))]):
        there = {c: path.read_bytes() for c in IMAGE_COLUMNS if (path := getattr(study, c)) is not None}
        # A reader that was used can be pickled.
        sample = pickle.loads(pickle.dumps(shards))[number] if number == 4 else shards[number]
        assert (sample.study.sample_id, sample.images) == (f"Überweisung/{number}", there)
    rows = shards.rows
    assert [shards.index.splits[code] for code in rows["split"]] == ["test"] * 3 + ["train"] * 6
    assert [shards.index.sources[code] for code in rows["source"]] == [None, "a"] * 4 + [None]
    assert rows["findings"].tolist() == [True] * 7 + [False] * 2
    assert rows["grounded"].tolist() == [False] * 6 + [True] * 3
    assert rows["phrases"].tolist() == [0] * 8 + [2]


def test_shards_are_webdataset_archives_below_the_maximum_size(packed: Path) -> None:
    names: list[list[str]] = []
    shards = sorted(packed.glob("*.tar"))
    assert len(shards) > 2
    for path in shards:
        assert path.stat().st_size <= 20_000
        with tarfile.open(path) as archive:
            assert all(member.isreg() for member in archive)
            names += [name.split(".", 1) for name in archive.getnames()]
    groups = [(key, [suffix for _, suffix in group]) for key, group in groupby(names, lambda name: name[0])]
    assert len({key for key, _ in groups}) == len(groups) == 9
    assert groups[5][1] == ["json", "frontal.png", "lateral.png", "prior_frontal.png"]


class Killed(BaseException): ...


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("stop_at", [1, 4, 8])
def test_a_resumed_packing_equals_a_whole_one(manifest: Path, packed: Path, tmp_path: Path, stop_at: int) -> None:
    def kill(done: int, _: int) -> None:
        if done == stop_at:
            raise Killed

    with pytest.raises(Killed):
        pack(manifest, tmp_path / "out", shard_size=20_000, on_progress=kill)
    assert not (tmp_path / "out" / INDEX).exists()
    (tmp_path / "out" / ".shard-000009.tar.x").write_bytes(b"of a run that was killed outright")
    finished = {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}
    assert pack(manifest, tmp_path / "out", shard_size=20_000)[1] == len(finished)
    assert finished.items() <= {path.name: path.stat().st_ino for path in (tmp_path / "out").glob("*.tar")}.items()
    assert _contents(tmp_path / "out") == _contents(packed)


def test_shards_after_a_rewritten_one_are_packed_again(tmp_path: Path) -> None:
    """A sample that can be read by then moves the beginnings of the following shards."""

    def kill(done: int, _: int) -> None:
        begun.append(done)
        # The second time, it is the first sample of the third shard.
        if begun.count(7) == 2:
            raise Killed

    begun: list[int] = []
    manifest, out = _damaged(tmp_path, [f"s{number}" for number in range(8)]), tmp_path / "out"
    image = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").unlink()
    with pytest.raises(Killed):
        pack(manifest, out, shard_size=15_000, on_progress=kill)
    (out / "shard-000000.tar").write_bytes(b"")
    (tmp_path / "1.png").write_bytes(image)
    pack(manifest, out, shard_size=15_000)
    assert [sample.study.sample_id for sample in Shards(out)] == [f"s{number}" for number in range(8)]


def test_a_finished_packing_is_unchanged(manifest: Path, packed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in packed.iterdir()}
    index, reused, _ = pack(manifest, packed, shard_size=20_000)
    assert reused == len(index.shards)
    with raises("shards: output-conflict"):
        pack(manifest, packed, shard_size=30_000)
    assert {path: path.stat().st_mtime_ns for path in packed.iterdir()} == before


def _damaged(folder: Path, names: Iterable[str]) -> Path:
    studies = [Study(sample_id=name, frontal=Path(f"{n}.png"), findings="Clear.") for n, name in enumerate(names)]
    for number, study in enumerate(studies):
        _png(folder / study.frontal, number)
    write_manifest(folder / "manifest.jsonl", studies)
    return folder / "manifest.jsonl"


def test_samples_without_their_images_are_listed_and_the_rest_is_packed(tmp_path: Path) -> None:
    manifest = _damaged(tmp_path, ["whole", "lost", "cut", "text"])
    (tmp_path / "1.png").unlink()
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:-20])
    (tmp_path / "3.png").write_text("hello")
    assert "skipped: lost:" in maira("pack", manifest, "--out", tmp_path / "out", code=ExitCode.INCOMPLETE).output
    assert [sample.study.sample_id for sample in Shards(tmp_path / "out")] == ["whole"]
    reasons = {"lost": "no such file"} | dict.fromkeys(("cut", "text"), "expected a complete PNG or JPEG")
    assert read_failures(tmp_path / "out" / "failures.jsonl") == [
        Failure(sample_id=name, stage="pack", reason=f"{tmp_path / f'{number}.png'}: {reason}")
        for number, (name, reason) in enumerate(reasons.items(), start=1)
    ]


def test_an_invalid_last_line_is_an_error_before_writing_and_no_sample_a_failure(tmp_path: Path) -> None:
    manifest = _damaged(tmp_path, ["lost"])
    valid = manifest.read_text()
    manifest.write_text(valid + '{"sample_id": "b"}\n')
    with raises("manifest.jsonl:2: frontal: missing-field"):
        pack(manifest, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    manifest.write_text(valid)
    (tmp_path / "0.png").unlink()
    with raises("run-failed"):
        pack(manifest, tmp_path / "out")


def test_damage_is_detected_on_read(manifest: Path, tmp_path: Path) -> None:
    pack(manifest, tmp_path / "copied", shuffle=3)
    shards = Shards(tmp_path / "copied")
    names = [sample.study.sample_id for sample in shards]
    assert names != sorted(names) == [f"Überweisung/{number}" for number in range(9)]
    content = bytearray((tmp_path / "copied/shard-000000.tar").read_bytes())
    content[int(shards.rows["offset"][4]) + 700] ^= 1
    (tmp_path / "copied/shard-000000.tar").write_bytes(content)
    assert shards[3].images
    with raises("shard-000000.tar: invalid-format"):
        shards[4]
    np.save(tmp_path / "copied/index.npy", shards.rows[:-1])
    with raises("index.npy: mismatch"):
        Shards(tmp_path / "copied")
    with raises("index.json: file-not-found"):
        Shards(tmp_path)


def test_shards_are_read_from_a_url(packed: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    store = fsspec.filesystem("memory")
    for path in packed.iterdir():
        store.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    remote = Shards("memory://bucket")
    assert list(remote) == list(Shards(packed))
    with raises("loft: file-unreadable"):
        Shards("carrier-pigeon://loft")


def test_sizes_are_read_with_units() -> None:
    sizes = {"500MB": 500_000_000, "1.5 gb": 1_500_000_000, "2K": 2000, "77": 77}
    assert {text: parse_size(text) for text in sizes} == sizes
