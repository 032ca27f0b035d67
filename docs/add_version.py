"""Add the built documentation to a site with several versions: python docs/add_version.py SITE [BUILD]."""

from __future__ import annotations

import argparse
import json
import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

from packaging.version import InvalidVersion, Version

_BUILD = Path(__file__).resolve().parents[1] / "build/docs"
_INDEX = """<!doctype html>
<html lang="en">
<title>maira-radfact</title>
<meta http-equiv="refresh" content="0; url={newest}/">
<a href="{newest}/">The documentation of version {newest}</a>
</html>
"""


def add_version(site: Path, build: Path, version: str) -> None:
    """Copy a build to `site/VERSION`, and rewrite the list of versions and the start page.

    Args:
        site: the folder of the site.
        build: the folder that `make docs` wrote.
        version: of the software that is described. A folder of this version is replaced.

    Raises:
        FileNotFoundError: the build has no index.html.
    """
    if not (build / "index.html").is_file():
        raise FileNotFoundError(f"{build / 'index.html'}: run make docs first")
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(build, site / version)
    versions = sorted(filter(None, map(_read_version, site.iterdir())), reverse=True)
    names = [str(each) for each in versions]
    (site / "versions.json").write_text(json.dumps(names) + "\n", "utf-8")
    (site / "index.html").write_text(_INDEX.format(newest=names[0]), "utf-8")
    # GitHub Pages would leave out folders whose name starts with an underscore.
    (site / ".nojekyll").touch()


def _read_version(folder: Path) -> Version | None:
    try:
        return Version(folder.name) if (folder / "index.html").is_file() else None
    except InvalidVersion:
        return None


def main() -> None:
    """Add the version that is installed."""
    parser = argparse.ArgumentParser(description="Add the built documentation to a site with several versions.")
    parser.add_argument("site", type=Path, help="folder of the site; created if it does not exist")
    parser.add_argument("build", type=Path, nargs="?", default=_BUILD, help="what make docs wrote; default: build/docs")
    arguments = parser.parse_args()
    add_version(arguments.site, arguments.build, installed_version("maira-radfact"))


if __name__ == "__main__":
    main()
