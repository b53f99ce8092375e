"""What is special about the Hugging Face hub among web servers: its address, its token, its versions, its refusals.

The hub's own library says where the hub is and which token it wants; the requests are made by a client of ours, so that
every release of that library will do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from shardmill.errors import SourceError
from shardmill.extras import needs
from shardmill.storage.names import HubAddress, public_url
from shardmill.storage.retrying import Unreachable, seems_changed
from shardmill.storage.source import Source

_NO_DATASET = (
    "the hub has no such dataset, or does not show it to you",
    "check the name; for a private dataset `hf auth login` or set HF_TOKEN",
)
# By the hub's own code, or else by the status.
_REFUSALS = {
    "GatedRepo": (
        "the dataset is gated: its owner wants you to accept its terms first",
        "accept them at https://huggingface.co/datasets/{repo}, then `hf auth login` or set HF_TOKEN",
    ),
    "RevisionNotFound": ("the dataset has no such revision", "check the name after the `@`"),
    "EntryNotFound": ("the dataset has no such file", "see https://huggingface.co/datasets/{repo}/tree/main"),
    "RepoNotFound": _NO_DATASET,
    "401": _NO_DATASET,
    "403": ("the hub does not allow it (403)", "the token must allow to read {repo}: `hf auth login` or set HF_TOKEN"),
}


class Hub:
    """Where the hub is, and what it wants to see, as its own library knows it."""

    def __init__(self) -> None:
        needs("huggingface_hub", "hf", "sources at the hub")
        constants = needs("huggingface_hub.constants", "hf", "sources at the hub")
        utils = needs("huggingface_hub.utils", "hf", "sources at the hub")
        self.endpoint = str(constants.ENDPOINT).rstrip("/")
        self.headers: dict[str, str] = utils.build_hf_headers(library_name="shardmill")
        self._offline = bool(constants.HF_HUB_OFFLINE)

    def has(self, url: str) -> bool:
        """Whether it is the hub itself that answers, and not a server to which it sends."""
        return url.startswith(self.endpoint + "/")

    def url_of(self, source: Source) -> str:
        address = HubAddress.parse(source.path)
        if address.kind == "buckets":
            return f"{self.endpoint}/buckets/{address.repo}/resolve/{quote(address.path, safe='')}"
        revision = quote(address.revision, safe="")
        return f"{self.endpoint}/datasets/{address.repo}/resolve/{revision}/{quote(address.path)}"

    def check_online(self, source: Source) -> None:
        if self._offline:
            raise Unreachable(
                "HF_HUB_OFFLINE is set, so that nothing is asked",
                place=source.name,
                hint="unset it; or name the folder of a download, such as that of `hf download`",
            )

    def check_version(self, source: Source, response: Any) -> None:
        """Raise when the hub's file of this name is not the one that was listed."""
        etag = response.headers.get("x-linked-etag") or response.headers.get("etag", "")
        if HubAddress.parse(source.path).kind == "buckets":
            etag = response.headers.get("x-xet-hash", "")
        if response.status_code < 400 and etag and etag.removeprefix("W/").strip('"') != source.version:
            raise seems_changed(source)

    def refusal(self, url: str, status: int, headers: Mapping[str, str]) -> SourceError:
        """The error for a status that no retry changes, with a hint."""
        other = f"the hub answers {status}", "check the address, and HF_ENDPOINT if it is set"
        message, hint = _REFUSALS.get(headers.get("x-error-code", "")) or _REFUSALS.get(str(status), other)
        if status == 401 and "Invalid credentials" in headers.get("x-error-message", ""):
            message, hint = "the hub does not accept the token (401)", "`hf auth login` again, or correct HF_TOKEN"
        return SourceError(message, place=public_url(url), hint=hint.format(repo=HubAddress.parse(url).repo))
