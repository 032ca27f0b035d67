"""One run in several processes, as `accelerate launch` and `torchrun` start them, and in one that is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from draft_files import without_time
from long_values import DATA
from ports import free_port
from tiny_runs import run_together, write_damaged
from waiting import PATIENCE

from maira.data.manifest import read_manifest, write_manifest
from maira.generate import drafts
from maira.generate.drafts import generate_drafts
from maira.generate.engine import EngineKind, EngineOptions, GenerationOptions, start_engine
from radfact.errors import InputError

pytestmark = pytest.mark.slow


def _together(script: str) -> list[tuple[int, str]]:
    """Run a script in two processes of one run; exit code and standard error of each."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]


def _command(checkpoint: Path, manifest: Path, out: Path) -> list[str]:
    options = ["--task", "grounded", "--max-new-tokens", "12", "--device", "cpu"]
    return ["generate", "--checkpoint", str(checkpoint), "--manifest", str(manifest), "--out", str(out), *options]


@pytest.fixture(scope="module")
def manifest(phantoms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven studies of which one has a radiograph that ends early."""
    return write_damaged(phantoms, tmp_path_factory.mktemp("seven"), 2, size=200, count=7)


@pytest.fixture(scope="module")
def alone(checkpoint: Path, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "drafts.jsonl"
    generate_drafts(read_manifest(manifest), checkpoint, out, GenerationOptions(max_new_tokens=12))
    return out


def test_two_processes_draft_as_one_process(checkpoint: Path, manifest: Path, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "drafts.jsonl"
    codes, (output, other_output) = run_together(_command(checkpoint, manifest, out), tmp_path)
    assert codes == [3, 3]
    assert without_time(out) == without_time(alone)
    assert (tmp_path / "failures.jsonl").read_text() == (alone.parent / "failures.jsonl").read_text()
    assert "6 of 7 studies drafted" in output
    assert "2.png" in output
    assert other_output == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafts.jsonl", "drafts.run.json", "failures.jsonl"]


def test_accelerate_may_launch_more_processes_than_studies(
    checkpoint: Path, manifest: Path, alone: Path, tmp_path: Path
) -> None:
    out, single = tmp_path / "drafts.jsonl", tmp_path / "one.jsonl"
    write_manifest(single, read_manifest(manifest)[:1])
    # The only way in which accelerate starts several processes; the command chooses their devices.
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0"]
    done = subprocess.run(
        [sys.executable, *launch, "-m", "maira", *_command(checkpoint, single, out)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    assert done.returncode == 0, done.stderr
    assert without_time(out) == without_time(alone)[:1]
    assert done.stdout.count("1 of 1 studies drafted") == 1


def test_a_run_resumes_with_another_number_of_processes(
    checkpoint: Path, manifest: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "drafts.jsonl"
    out.with_name("drafts.run.json").write_bytes(alone.with_name("drafts.run.json").read_bytes())
    lines = alone.read_text().splitlines(keepends=True)
    for rank, name in enumerate(["partial", "partial.1", "partial.12"]):
        torn = '{"sample_id": "ha' if rank else ""
        out.with_name(f"drafts.jsonl.{name}").write_text("".join(lines[rank::3]) + torn)
    sound = [study for study in read_manifest(manifest) if study.frontal.name != "2.png"]
    monkeypatch.delattr(drafts, "start_engine")
    generate_drafts(sound, checkpoint, out, GenerationOptions(max_new_tokens=12))
    assert out.read_text() == alone.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drafts.jsonl", "drafts.run.json"]


def test_bad_input_is_reported_once(checkpoint: Path, phantoms: Path, tmp_path: Path) -> None:
    out = tmp_path / "drafts.jsonl"
    out.write_text("mine\n")
    codes, (output, other_output) = run_together(_command(checkpoint, phantoms, out), tmp_path)
    assert codes == [2, 2], (output, other_output)
    assert "[output-conflict]" in output
    assert "Traceback" not in output
    assert other_output == ""
    assert out.read_text() == "mine\n"


STOPS = DATA["stopping processes"]


def test_a_failed_process_stops_all_and_the_main_process_reports_it() -> None:
    (main, errors), (second, other_errors) = _together(STOPS)
    assert (main, second) == (2, 2)
    assert errors.strip().splitlines()[-1].startswith("maira: process 1 stopped: the radiograph is gone")
    assert "the radiograph is gone" not in other_errors


def test_a_process_that_dies_stops_the_others() -> None:
    (main, errors), (second, _) = _together(STOPS.replace("raise Gone", "import os; os._exit(9); print"))
    assert (main, second) == (1, 9)
    assert "maira: another process of the run died" in errors


def test_skipped_samples_do_not_set_the_exit_code_of_a_launched_process(tmp_path: Path) -> None:
    launch = ["-m", "accelerate.commands.launch", "--num_processes", "1"]
    script = tmp_path / "left_out.py"
    script.write_text("import sys, maira.runtime.processes as group\ngroup.run_as_group(lambda: sys.exit(3))\n")
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, *launch, script], capture_output=True, check=False, env=os.environ | root)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["vllm", "ray"])
def test_engines_with_own_workers_refuse_a_launcher(
    kind: EngineKind, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="without a launcher"):
        start_engine(checkpoint, EngineOptions(engine=kind))
