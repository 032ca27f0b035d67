"""Runs the steps of a Dockerfile without a container runtime, in a folder that stands for the root of the image."""

import json
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A path that starts with a slash; neither part of another path nor of a URL.
_ABSOLUTE = re.compile(r"(?<![\w./-])/(?=\w)")
_NETWORK = re.compile(r"(PIP|UV|SSL)_|.*_proxy$", re.IGNORECASE)


def read_stages(dockerfile: Path = ROOT / "Dockerfile") -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage, each with its argument; the first is FROM."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE))
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in filter(None, text.splitlines()):
        name, _, argument = line.partition(" ")
        if name == "FROM":
            parent, _, stage = argument.split()
            stages[stage] = [(name, parent)]
        else:
            stages[stage].append((name, argument.strip()))
    return stages


@dataclass(frozen=True)
class Image:
    """The settings of a stage; their paths are those inside `root`, which stands for the root folder."""

    root: Path
    environment: dict[str, str]
    folder: str = "/"
    settings: dict[str, str] = field(default_factory=dict)
    """Arguments of the other instructions by name, such as USER and CMD."""

    def inside(self, text: str) -> str:
        """Prefix the absolute paths of a text with the root."""
        return _ABSOLUTE.sub(f"{self.root}/", text)

    def arguments(self, name: str) -> list[str]:
        """Return the argument of an instruction that is a JSON list."""
        return [self.inside(argument) for argument in json.loads(self.settings[name])]

    def as_user(self, *command: str) -> list[str]:
        """Return a command of the image's user; only the superuser can become another one."""
        user, group = self.settings["USER"].split(":")
        become = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"] if os.geteuid() == 0 else []
        return [*become, *command]

    def run(self, *command: str) -> str:
        """Run a command in the working folder, and return what it prints."""
        folder = self.inside(self.folder)
        done = subprocess.run(command, cwd=folder, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr


class Builder:
    """Executes stages in one root; a file that one stage copies from another has the same path in both."""

    def __init__(self, root: Path) -> None:
        """Create the root, with a copy of this Python in place of that of the base image."""
        self.root = root
        self.images: dict[str, Image] = {}
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        base, local = Path(sys.base_prefix), root / "usr" / "local"
        for folder in ("bin", "lib"):
            (local / folder).mkdir(parents=True)
        shutil.copy2(base / "bin" / version, local / "bin" / version)
        (local / "bin" / "python").symlink_to(version)
        for library in (base / "lib").glob("libpython*.so*"):
            shutil.copy2(library, local / "lib" / library.name)
        ignored = shutil.ignore_patterns("site-packages", "test", "idlelib", "config-*")
        shutil.copytree(base / "lib" / version, local / "lib" / version, ignore=ignored)
        environment = {name: value for name, value in os.environ.items() if _NETWORK.match(name)}
        # Its cache saves downloads.
        cache = subprocess.check_output([Path(sys.executable).with_name("uv"), "cache", "dir"], text=True).strip()
        environment |= {"PATH": f"{local}/bin:/usr/bin:/bin", "LD_LIBRARY_PATH": f"{local}/lib", "UV_CACHE_DIR": cache}
        self.base = Image(root, environment)
        self.base.run(f"{local}/bin/python", "-m", "ensurepip", "--default-pip")

    def build(self, stage: str) -> Image:
        """Execute a stage, after those that it needs."""
        (_, parent), *instructions = STAGES[stage]
        image = self.build(parent) if parent in STAGES else self.base
        for name, argument in instructions if stage not in self.images else ():
            image = self._execute(image, name, argument)
        return self.images.setdefault(stage, image)

    def _execute(self, image: Image, name: str, argument: str) -> Image:
        if name == "ENV":
            values = dict(part.split("=", 1) for part in shlex.split(image.inside(argument)))
            values.pop("UV_COMPILE_BYTECODE", None)  # takes most of the time, and no test needs it
            values = {key: string.Template(value).substitute(image.environment) for key, value in values.items()}
            return replace(image, environment=image.environment | values)
        if name == "WORKDIR":
            Path(image.inside(argument)).mkdir(parents=True, exist_ok=True)
            return replace(image, folder=argument)
        if name == "COPY":
            self._copy(image, argument.split())
        elif name == "RUN":
            image.run("sh", "-ec", image.inside(argument))
        return replace(image, settings=image.settings | {name: argument})

    def _copy(self, image: Image, parts: list[str]) -> None:
        *sources, target = parts
        if sources[0].startswith("--from="):
            self.build(sources[0].removeprefix("--from="))
            assert sources[1:] == [target], "the stages share one root"
            return
        folder = Path(image.inside(image.folder))
        files = subprocess.check_output(["git", "ls-files", "--", *sources], cwd=ROOT, text=True).split()
        assert {file.split("/")[0] for file in files} == set(sources)
        for file in files:
            path = folder / target / file if target == "./" else folder / target / Path(file).relative_to(sources[0])
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, path, follow_symlinks=False)


STAGES = read_stages()
