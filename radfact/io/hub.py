"""Models of the Hugging Face Hub by their name, through huggingface_hub and its cache."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from radfact.errors import ErrorCode, InputError, RunError

SETTINGS_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
"""Files of configuration, tokenizer and processor."""
MODEL_FILES = (*SETTINGS_FILES, "*.safetensors")
"""Files of a model that are downloaded: neither code nor pickles."""
TOKEN_HINT = "set HF_TOKEN or run 'hf auth login'"
_NAME = re.compile(r"(?P<repo>[\w-][\w.-]*/[\w-][\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_SNAPSHOT = re.compile(r"models--(?P<organization>.+?)--(?P<name>.+)")


def parse_hub_name(name: Path | str) -> tuple[str, str | None] | None:
    """Return repository and revision of a name ORG/NAME or ORG/NAME@REVISION; None for a path."""
    match = _NAME.fullmatch(str(name))
    if match is None or Path(name).exists() or Path(match["repo"]).exists() or Path(name).parts[0] == "..":
        return None
    return None if Path(Path(name).parts[0]).is_dir() else (match["repo"], match["revision"])


def resolve_model(name: Path | str, *, field: str | None = None, **options: Any) -> Path:
    """Return the local folder of a model, downloading it from the Hub if needed."""
    if (parsed := parse_hub_name(name)) is None:
        return Path(name)
    repo, revision = parsed
    try:
        import huggingface_hub
    except ImportError:
        message = f"no folder '{repo}', and downloading it requires huggingface_hub: pip install huggingface_hub"
        raise InputError(message, code=ErrorCode.MISSING_REQUIREMENT, field=field) from None
    options = {"revision": revision, "allow_patterns": list(MODEL_FILES), "ignore_patterns": ["*/*"], **options}
    with hub_errors(str(name), field=field), progress_on_terminals():
        return Path(huggingface_hub.snapshot_download(repo, **options))


def snapshot_name(folder: Path) -> tuple[str, str] | None:
    """Return repository and commit of a folder in Hugging Face's cache; None for any other folder."""
    parts = folder.absolute().parts
    if len(parts) < 3 or parts[-2] != "snapshots" or not (match := _SNAPSHOT.fullmatch(parts[-3])):
        return None
    return f"{match['organization']}/{match['name']}", parts[-1]


@contextmanager
def hub_errors(name: str, *, field: str | None = None) -> Iterator[None]:
    """Turn errors of huggingface_hub into errors of one line."""
    from huggingface_hub import errors

    network = (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError, errors.HTTPError)  # type: ignore[attr-defined]
    try:
        yield
    except (InputError, RunError):
        raise
    except errors.HFValidationError as error:
        raise InputError(f"'{name}': {first_line(error)}", code=ErrorCode.INVALID_OPTION, field=field) from None
    except (*network, RuntimeError) as error:
        # An upload wraps its error, and hf_xet raises nothing narrower.
        wrapped = None if getattr(error, "response", None) is not None else error.__cause__
        raise _network_error(wrapped or error, name, field) from None
    except ValueError as error:
        # Metadata of a model card that the Hub refuses, among others.
        raise InputError(f"'{name}': {' '.join(str(error).split())}", field=field) from None


@contextmanager
def progress_on_terminals() -> Iterator[None]:
    """Disable the progress bars of huggingface_hub where standard error is no terminal."""
    from huggingface_hub import utils

    with ExitStack() as stack:
        if not sys.stderr.isatty() and not utils.are_progress_bars_disabled():  # type: ignore[attr-defined]
            utils.disable_progress_bars()  # type: ignore[attr-defined]
            stack.callback(utils.enable_progress_bars)  # type: ignore[attr-defined]
        yield


def _network_error(error: BaseException, name: str, field: str | None) -> InputError | RunError:
    from huggingface_hub import constants, errors, get_token

    hub, response, code = constants.ENDPOINT, getattr(error, "response", None), ErrorCode.MISSING_REQUIREMENT
    if response is None and (isinstance(error, errors.OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE):
        cache = f"it is not in the cache {constants.HF_HUB_CACHE}"
        message = f"no folder '{name}', and {cache}; unset HF_HUB_OFFLINE to download it"
        code = ErrorCode.FILE_NOT_FOUND
    elif response is None:
        advice = "check the network, HF_ENDPOINT and proxies, or the path if this is a folder"
        message = f"'{name}': {hub} cannot be reached ({first_line(error)}); {advice}"
        return RunError(message, code=ErrorCode.SERVER_UNAVAILABLE)
    elif isinstance(error, errors.GatedRepoError):
        message = f"accept the conditions of {hub}/{name} with your account, and {TOKEN_HINT}"
    elif isinstance(error, errors.RevisionNotFoundError):
        message, code = f"'{name}': no such revision at {hub}", ErrorCode.UNKNOWN_NAME
    elif isinstance(error, errors.RepositoryNotFoundError):
        readable = f"no repository at {hub} that your token can read; if it is private, {TOKEN_HINT}"
        message, code = f"no folder '{name}', and {readable}", ErrorCode.UNKNOWN_NAME
    elif response.status_code in (401, 403):
        problem = "the token has no permission for it, or is wrong" if get_token() else "there is no token"
        message = f"'{name}': {hub} refuses access ({response.status_code}); {problem}; {TOKEN_HINT}"
    else:
        reason = " ".join(str(getattr(error, "server_message", None) or response.reason_phrase).split())[:200]
        message = f"'{name}': {hub} returned status {response.status_code} ({reason})"
        return RunError(message, code=ErrorCode.SERVER_UNAVAILABLE)
    return InputError(message, code=code, field=field)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
