"""Files of weights are told apart by samples of them."""

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from radfact.fingerprint import weights_digest

SIZE = 100_000


def write(path: Path, names: Sequence[str], changed: int | None = None) -> Path:
    """Tensors of one size, all zeros but for one byte."""
    spans = {name: [place * SIZE, (place + 1) * SIZE] for place, name in enumerate(names)}
    header = json.dumps({name: {"dtype": "U8", "shape": [SIZE], "data_offsets": at} for name, at in spans.items()})
    tensors = bytearray(SIZE * len(names))
    if changed is not None:
        tensors[changed] = 1
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + tensors)
    return path


NAMES = [f"layers.{number}.weight" for number in range(200)]


def test_names_and_each_end_and_the_middle_of_tensors_count(tmp_path: Path) -> None:
    plain = weights_digest(write(tmp_path / "plain", NAMES))
    places = [tensor * SIZE + place for tensor in (0, 77, 199) for place in (0, SIZE // 2, SIZE - 1)]
    assert plain not in [weights_digest(write(tmp_path / "other", NAMES, changed)) for changed in places]
    swapped = [NAMES[1], NAMES[0], *NAMES[2:]]
    assert weights_digest(write(tmp_path / "swapped", swapped)) != plain


@pytest.mark.parametrize(
    "content", [b"", b"PK", bytes(1_000_000), b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]12345678"]
)
def test_what_is_no_safetensors_is_read_in_places(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(content + b"\x01")
    assert weights_digest(tmp_path / "a") != weights_digest(tmp_path / "b")


def test_the_first_bytes_of_another_format_are_no_length_of_a_header(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    tracemalloc.start()
    weights_digest(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
