"""Calls of huggingface_hub on edgekit's terms, its errors translated into those of `hub.errors`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgekit.flashload.errors import EdgekitError
from edgekit.runtime.errors import one_line
from edgekit.runtime.hub.errors import (
    DownloadFailed,
    GatedModel,
    HubBusy,
    HubError,
    HubNotInstalled,
    HubUnavailable,
    ModelNotFound,
    NotLoggedIn,
    RevisionNotFound,
    UploadFailed,
    unexpected,
)


@contextmanager
def translated(
    repo: str,
    revision: str | None = None,
    *,
    file: str | None = None,
    nbytes: int | None = None,
    uploading: bool = False,
) -> Iterator[None]:
    """Inside the block the library asks on our terms, and its errors become those of `hub.errors`.

    file, nbytes: what is downloaded, of commit `revision`, and its size.
    Raises:
        HubNotInstalled: the library is not there.
    """
    doing = "uploading" if uploading else "downloading"
    try:
        import httpx2  # noqa: F401
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise HubNotInstalled(f"{repo}: {doing} needs huggingface_hub: pip install 'edgekit[hub]'") from error
    from edgekit.runtime.hub.client import terms

    at = f"{repo}@{revision}" if revision else repo
    if file is not None:
        at += f": {file}" if len(file) <= 100 else f": ...{file[-100:]}"
    try:
        with terms(at, nbytes, revision if file is not None else None):
            yield
    except Exception as error:
        meaning = None
        if not isinstance(error, EdgekitError):
            meaning = _meaning(error, repo, revision, at, file is not None, uploading)
        if meaning is None:
            raise
        raise meaning from error


@contextmanager
def hub_like(about: str) -> Iterator[None]:
    """Inside the block, which is a call of the library alone, what it cannot make sense of is a server's."""
    from huggingface_hub import errors

    try:
        yield
    except (errors.HFValidationError, errors.BadRequestError):  # ValueErrors too
        raise
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as error:
        raise unexpected(about, one_line(error)[:100]) from error


def _meaning(
    error: Exception, repo: str, revision: str | None, at: str, of_file: bool, uploading: bool
) -> HubError | None:
    """The error of `hub.errors` for one of the library's; None for others."""
    import httpx2
    from huggingface_hub import errors

    match error:
        case errors.GatedRepoError():
            return GatedModel(
                f"{repo}: is gated; accept its licence at https://huggingface.co/{repo} "
                "and log in with `hf auth login`"
            )
        case errors.RepositoryNotFoundError() if not of_file:
            where = "no such" if uploading else "no such directory and no such"
            return ModelNotFound(
                f"{repo}: {where} Hugging Face repository; check the spelling, "
                "or log in with `hf auth login` if it is private"
            )
        case errors.RevisionNotFoundError():
            return RevisionNotFound(f"{repo}: has no branch, tag or commit {revision or 'main'}")
        case errors.DisabledRepoError():
            return ModelNotFound(f"{repo}: the repository has been disabled on the hub")
        case errors.HFValidationError():
            return ModelNotFound(f"{repo}: not a valid repository name ({_first_line(error)})")
        case errors.IncompleteSnapshotError():
            return HubUnavailable(
                f"{at}: the hub cannot be reached and the cached copy {error.snapshot_path} is incomplete; "
                "go online and run this again"
            )
        case errors.FileMetadataError():
            return unexpected(at, "a file without commit, ETag or length")
        case errors.LocalEntryNotFoundError() if isinstance(
            error.__cause__, errors.HfHubHTTPError | errors.FileMetadataError
        ):  # the library says that its connection failed, whatever the hub said
            return _meaning(error.__cause__, repo, revision, at, of_file, uploading)
        case (
            errors.LocalEntryNotFoundError()
            | errors.OfflineModeIsEnabled()
            | errors.RevisionResolutionError()
            | httpx2.TransportError()
        ):
            cached = "" if uploading else " and there is no cached copy"
            instead = "" if uploading else ", or give a local directory"
            return HubUnavailable(
                f"{at}: the hub cannot be reached ({_why_unreachable(error)}){cached}; go online, "
                f"unset HF_HUB_OFFLINE{instead}"
            )
        case errors.LocalTokenNotFoundError():
            return NotLoggedIn(f"{repo}: nobody is logged in; `hf auth login` does it, or set HF_TOKEN")
        case errors.HfHubHTTPError() if refused := _refused(
            error, error.response.status_code, repo, at, of_file, uploading
        ):
            return refused
        case httpx2.HTTPError() | errors.XetDownloadError() | OSError():
            failed = UploadFailed if uploading else DownloadFailed
            return failed(
                f"{at}: the {'upload' if uploading else 'download'} failed ({_first_line(error)}); "
                "run this again, it goes on where it stopped"
            )
    return None


def _refused(
    error: Exception, status: int, repo: str, at: str, of_file: bool, uploading: bool
) -> HubError | None:
    """The error for a status that another try does not change; None for others."""
    page = f"https://huggingface.co/{repo}"
    if uploading and status in (401, 403):
        return NotLoggedIn(
            f"{repo}: the hub does not let you write there ({_first_line(error)}); log in with "
            "`hf auth login`, with a token that may write, and check the owner's name"
        )
    if status == 429:
        return HubBusy(
            f"{at}: too many requests for the hub (429); run this again in some minutes, it goes on where it "
            "stopped; who is logged in (`hf auth login`) may ask for more",
            status,
        )
    if uploading or not 400 <= status < 500 or status == 408:
        return None
    if status == 401:
        return NotLoggedIn(
            f"{at}: the hub wants to know who asks (401); log in with `hf auth login`, or set HF_TOKEN to a "
            "token that is valid and may read it"
        )
    if status == 403:
        return GatedModel(
            f"{at}: the hub does not give it to you (403); accept its licence at {page} if it is gated, and "
            "log in with `hf auth login`, with a token that may read it"
        )
    if status in (404, 410):
        if of_file:
            return DownloadFailed(
                f"{at}: the hub lists it and does not have it ({status}); choose another revision of {page}"
            )
        return ModelNotFound(f"{at}: the hub does not know it ({status}); check the name and HF_ENDPOINT")
    return DownloadFailed(
        f"{at}: the hub refuses it ({_first_line(error)}); check HF_ENDPOINT and whether {page} opens"
    )


def _why_unreachable(error: Exception) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.RevisionResolutionError):
        if isinstance(error.__cause__, Exception):
            return _first_line(error.__cause__)
        return "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "nothing answers"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    """The first non-empty line of the message: the hub's messages are paragraphs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
