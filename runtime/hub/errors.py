"""Errors of talking to the Hugging Face hub, one class per cause, and what they make of the library's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgekit.flashload.errors import EdgekitError


class HubError(EdgekitError):
    """Base of everything that can go wrong with a repository on the hub."""


class ModelNotFound(HubError):
    """No directory, shipped model or hub repository of that name."""


class RevisionNotFound(ModelNotFound):
    """The hub repository exists, the revision does not."""


class NotABundle(HubError):
    """The hub repository exists and holds something else than a bundle."""


class GatedModel(HubError):
    """The hub repository wants its licence accepted, and a login, before it gives out files."""


class NotLoggedIn(HubError):
    """The hub wants to know who uploads, or does not let them write there."""


class HubUnavailable(HubError):
    """The hub cannot be reached and the files are not in the local cache."""


class DownloadFailed(HubError):
    """A download began and did not finish."""


class UploadFailed(HubError):
    """An upload began and did not finish."""


class HubNotInstalled(HubError):
    """huggingface_hub is not installed."""


@contextmanager
def translated(repo: str, revision: str | None = None, *, uploading: bool = False) -> Iterator[None]:
    """Inside the block the errors of huggingface_hub become those of this module.

    Raises:
        HubNotInstalled: the library is not there.
    """
    doing = "uploading" if uploading else "downloading"
    try:
        import httpx2
        from huggingface_hub import errors
    except ImportError as error:
        raise HubNotInstalled(f"{repo}: {doing} needs huggingface_hub: pip install 'edgekit[hub]'") from error
    at = f"{repo}@{revision}" if revision else repo
    try:
        yield
    except errors.GatedRepoError as error:
        raise GatedModel(
            f"{repo}: is gated; accept its licence at https://huggingface.co/{repo} "
            "and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        where = "no such" if uploading else "no such directory and no such"
        raise ModelNotFound(
            f"{repo}: {where} Hugging Face repository; check the spelling, "
            "or log in with `hf auth login` if it is private"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise RevisionNotFound(f"{repo}: has no branch, tag or commit {revision or 'main'}") from error
    except errors.DisabledRepoError as error:
        raise ModelNotFound(f"{repo}: the repository has been disabled on the hub") from error
    except errors.HFValidationError as error:
        raise ModelNotFound(f"{repo}: not a valid repository name ({_first_line(error)})") from error
    except errors.IncompleteSnapshotError as error:
        raise HubUnavailable(
            f"{at}: the hub cannot be reached and the cached copy {error.snapshot_path} is incomplete; "
            "go online and run this again"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        errors.RevisionResolutionError,
        httpx2.TransportError,
    ) as error:
        cached = "" if uploading else " and there is no cached copy"
        instead = "" if uploading else ", or give a local directory"
        raise HubUnavailable(
            f"{at}: the hub cannot be reached ({_why_unreachable(error)}){cached}; go online, "
            f"unset HF_HUB_OFFLINE{instead}"
        ) from error
    except errors.LocalTokenNotFoundError as error:
        raise NotLoggedIn(f"{repo}: nobody is logged in; `hf auth login` does it, or set HF_TOKEN") from error
    except (httpx2.HTTPError, errors.XetDownloadError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if uploading and status in (401, 403):
            raise NotLoggedIn(
                f"{repo}: the hub does not let you write there ({_first_line(error)}); log in with "
                "`hf auth login`, with a token that may write, and check the owner's name"
            ) from error
        failed = UploadFailed if uploading else DownloadFailed
        raise failed(
            f"{at}: the {'upload' if uploading else 'download'} failed ({_first_line(error)}); "
            "run this again, it goes on where it stopped"
        ) from error


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
