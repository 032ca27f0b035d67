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
    """Return repository and revision of a name ORG/NAME or ORG/NAME@REVISION.

    Returns None for a path: an existing one, one in an existing folder, and anything else of another form.
    """
    match = _NAME.fullmatch(str(name))
    if match is None or Path(name).exists() or Path(match["repo"]).exists() or Path(name).parts[0] == "..":
        return None
    return None if Path(Path(name).parts[0]).is_dir() else (match["repo"], match["revision"])


def resolve_model(name: Path | str, *, field: str | None = None, **options: Any) -> Path:
    """Return the local folder of a model, downloading it from the Hub if needed."""
    parsed = parse_hub_name(name)
    if parsed is None:
        return Path(name)
    repo, revision = parsed
    try:
        import huggingface_hub
    except ImportError:
        raise InputError(
            f"no folder '{repo}', and downloading it from the Hub requires huggingface_hub: "
            "pip install huggingface_hub",
            code=ErrorCode.MISSING_REQUIREMENT,
            field=field,
        ) from None
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

    try:
        yield
    except errors.HFValidationError as error:
        raise InputError(f"'{name}': {_first_line(error)}", code=ErrorCode.INVALID_OPTION, field=field) from None
    except errors.LocalEntryNotFoundError as error:
        raise _unreachable(error.__cause__ or error, name, field) from None
    except errors.OfflineModeIsEnabled as error:
        raise _unreachable(error, name, field) from None
    except (InputError, RunError):
        raise
    except errors.HTTPError as error:  # type: ignore[attr-defined]
        raise _http_error(error, name, field) from None
    except RuntimeError as error:
        # An upload wraps its error, and hf_xet raises nothing narrower.
        raise _http_error(error.__cause__ or error, name, field) from None
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


def _unreachable(error: BaseException, name: str, field: str | None) -> InputError | RunError:
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled) or constants.HF_HUB_OFFLINE:
        cache = f"it is not in the cache {constants.HF_HUB_CACHE}"
        message = f"no folder '{name}', and {cache}; unset HF_HUB_OFFLINE to download it"
        return InputError(message, code=ErrorCode.FILE_NOT_FOUND, field=field)
    return RunError(
        f"'{name}': {constants.ENDPOINT} cannot be reached ({_first_line(error)}); check the network, HF_ENDPOINT and "
        "proxies, or the path if this is a folder",
        code=ErrorCode.SERVER_UNAVAILABLE,
    )


def _http_error(error: BaseException, name: str, field: str | None) -> InputError | RunError:
    from huggingface_hub import constants, errors, get_token

    response = getattr(error, "response", None)
    if response is None:
        return _unreachable(error, name, field)
    address, status, code = constants.ENDPOINT, response.status_code, ErrorCode.MISSING_REQUIREMENT
    if isinstance(error, errors.GatedRepoError):
        message = f"accept the conditions of {address}/{name} with your account, and {TOKEN_HINT}"
    elif isinstance(error, errors.RevisionNotFoundError):
        message, code = f"'{name}': no such revision at {address}", ErrorCode.UNKNOWN_NAME
    elif isinstance(error, errors.RepositoryNotFoundError):
        readable = f"no repository at {address} that your token can read; if it is private, {TOKEN_HINT}"
        message, code = f"no folder '{name}', and {readable}", ErrorCode.UNKNOWN_NAME
    elif status in (401, 403):
        problem = "the token has no permission for it, or is wrong" if get_token() else "there is no token"
        message = f"'{name}': {address} refuses access ({status}); {problem}; {TOKEN_HINT}"
    else:
        reason = " ".join(str(getattr(error, "server_message", None) or response.reason_phrase).split())[:200]
        message = f"'{name}': {address} returned status {status} ({reason})"
        return RunError(message, code=ErrorCode.SERVER_UNAVAILABLE)
    return InputError(message, code=code, field=field)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
