"""Options that the commands of `radfact meta` refuse: the cases of `meta_refusals.yaml`."""

import shlex
from pathlib import Path

import pytest
import yaml
from meta_run import Serve, refuse_meta, run_meta, write_table

CASES = yaml.safe_load(Path(__file__).with_name("meta_refusals.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    run_meta("examples", "--out", folder / "examples")
    rows = [[f"{site}{number}", site, "No effusion. Mild cardiomegaly."] for site in "xy" for number in (1, 2)]
    write_table(folder / "examples" / "reports.csv", ["id", "site", "report"], rows)
    return folder / "examples"


@pytest.mark.parametrize(("arguments", "code", "option"), CASES)
def test_wrong_options_are_refused_before_the_model_is_queried(
    arguments: str,
    code: str,
    option: str,
    inputs: Path,
    tmp_path: Path,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(inputs)
    server, out = serve(lambda *_: (200, {}, "")), tmp_path / "out"
    command = arguments.replace("MODEL", "--judge openai:m SERVER").replace("SERVER", f"--base-url {server.base_url}")
    found, line = refuse_meta(*shlex.split(command), "--out", out)
    assert (found, option in line) == (code, True)
    assert not server.requests
    assert not out.exists()
