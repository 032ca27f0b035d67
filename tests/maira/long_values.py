"""Scripts, configurations and cases of the tests, by name."""

from pathlib import Path

import yaml

DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
