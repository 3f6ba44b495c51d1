"""Errors of talking to the Hugging Face hub, one class per cause."""

from __future__ import annotations

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


class UnexpectedAnswer(HubError):
    """The server that answers is no hub, or one with bad intentions."""


class HubBusy(HubError):
    """The hub asks to wait; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class DownloadFailed(HubError):
    """A download began and did not finish."""


class UploadFailed(HubError):
    """An upload began and did not finish."""


class HubNotInstalled(HubError):
    """huggingface_hub is not installed."""


def unexpected(about: str, found: str) -> UnexpectedAnswer:
    """The error for an answer that no hub gives; `about` is what was asked for."""
    return UnexpectedAnswer(
        f"{about}: does not answer as a hub (found {found}); check HF_ENDPOINT, or sign in to the network"
    )
