"""Fixtures of several tests: a tiny MAIRA-2, phantoms to train it on, and reviews."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_weights import make_config, make_model, make_processor

from maira.data.images import Gray
from maira.data.manifest import read_manifest
from maira.data.phantoms import write_phantoms
from maira.data.study import Study
from maira.generate.engine import GenerationRequest
from maira.generate.transformers_engine import TransformersEngine
from maira.model.config import MairaConfig
from maira.model.modeling import MairaForConditionalGeneration
from maira.model.processor import MairaProcessor

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from review_desk import Running

    from maira.review.store import Store


@pytest.fixture
def run_maira(run_program: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Run `maira` with arguments in an empty folder; return exit code, standard output and standard error."""
    from maira.cli.main import main

    return partial(run_program, "maira", main)


@pytest.fixture(scope="session")
def processor() -> MairaProcessor:
    return make_processor()


@pytest.fixture(scope="session")
def config(processor: MairaProcessor) -> MairaConfig:
    return make_config(processor)


@pytest.fixture(scope="session")
def model(config: MairaConfig) -> MairaForConditionalGeneration:
    """The end token is never the most likely one, so that no response is empty."""
    made: MairaForConditionalGeneration = make_model(config, seed=0)
    with torch.no_grad():
        made.get_output_embeddings().weight[made.config.text_config.eos_token_id] = 0
    return made


@pytest.fixture(scope="session")
def radiographs() -> list[Gray]:
    """Three images of gray noise, (40, 32)."""
    return list(np.random.default_rng(0).random((3, 40, 32), np.float32))


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of 14 phantoms at 64 pixels."""
    folder = tmp_path_factory.mktemp("phantoms")
    list(write_phantoms(folder, 14, seed=7, size=64, split="train"))
    return folder / "manifest.jsonl"


@pytest.fixture(scope="session")
def checkpoint(
    model: MairaForConditionalGeneration, processor: MairaProcessor, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the model and its processor."""
    folder = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def studies(phantoms: Path) -> list[Study]:
    """Five phantoms."""
    return read_manifest(phantoms)[:5]


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the studies that any engine receives."""
    ids: list[str] = []
    answers = TransformersEngine.generate

    def spy(self: TransformersEngine, requests: Sequence[GenerationRequest]) -> Any:
        ids.extend(request.example.sample_id for request in requests)
        return answers(self, requests)

    monkeypatch.setattr(TransformersEngine, "generate", spy)
    return ids


@pytest.fixture
def make_study(tmp_path: Path) -> Callable[..., Study]:
    """Makes a study with images twice as wide as high: their crop is the middle half, u = 2 x - 0.5."""
    for name in ("frontal", "lateral", "prior_frontal"):
        Image.new("L", (200, 100)).save(tmp_path / f"{name}.png")

    def make(*images: str, **values: Any) -> Study:
        paths = {name: tmp_path / f"{name}.png" for name in ("frontal", *images)}
        return Study.model_validate({"sample_id": "s1"} | paths | values)

    return make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A review of two studies by two readers."""
    from review_files import REPORT, new_store

    with closing(new_store(tmp_path, {"one": REPORT, "two": REPORT}, ["Ada", "Ben"])) as store:
        yield store


@pytest.fixture
def running(server: Running, request: pytest.FixtureRequest) -> Running:
    """The server of a file's tests, with a reader of this test only."""
    return replace(server, reader=request.node.name)


@pytest.fixture
def page(browser: Browser, running: Running) -> Iterator[Page]:
    """The first study, as the reader of this test has opened it."""
    from review_desk import visiting

    with visiting(browser, running) as page:
        yield page
