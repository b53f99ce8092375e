"""The list of a dataset's files at the Hugging Face hub, at one commit.

The hub is asked directly and not by its library's `HfApi`, which takes an empty page without a link for the end of the
list, although the page before it promised more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from shardmill.errors import SourceError
from shardmill.sources.cards import CARD, CARD_BYTES
from shardmill.sources.names import WILDCARD, split_pattern
from shardmill.storage import Fetcher, HubAddress, ListedObject, Source, Transient, public_url

Ask = Callable[..., tuple[Any, str]]
"""Returns the hub's response to an API path, and the URL of the next page."""


class HubListing(NamedTuple):
    """Files of a dataset at one commit."""

    commit: str
    files: list[ListedObject]
    card: str
    """The beginning of its card; empty if not the whole dataset was asked for."""

    def name(self, address: HubAddress, path: str) -> str:
        """The name of a file as a source."""
        at = f"@{self.commit}" if self.commit else ""
        return f"hf://{address.kind}/{address.repo}{at}/{path}"


def list_hub(spec: str, address: HubAddress, commit: str | None, fetcher: Fetcher) -> HubListing:
    """Return the files that an address may name. `commit`: the one to list, if it is known."""

    def checked() -> HubListing:
        try:
            return _ask(spec, address, commit, fetcher)
        except (KeyError, TypeError, ValueError):
            message = "the hub's response does not have the expected form"
            hint = "check HF_ENDPOINT if it is set, and whether there is a proxy"
            raise Transient(message, tries=3, error=SourceError(message, place=public_url(spec), hint=hint)) from None

    return fetcher.retry(checked, public_url(spec))


def _ask(spec: str, address: HubAddress, commit: str | None, fetcher: Fetcher) -> HubListing:
    """Ask the hub for the commit and the files; KeyError, TypeError or ValueError if its response has another form."""
    repo = f"{address.kind}/{quote(address.repo)}"

    def ask(path: str, form: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        return fetcher.request(lambda: fetcher.web.ask_hub_api(spec, path, form), public_url(spec))

    root, pattern = split_pattern(address.path)
    deep = not pattern or "**" in pattern or "/" in pattern
    if address.kind == "buckets":
        files = _pages(spec, _bucket_tree(repo, root, deep), ask)
        if not files:  # it may be a file
            files = _pages(spec, _bucket_tree(repo, root.rpartition("/")[0], False), ask)
            files = [one for one in files if one.path == root]
        return HubListing("", files, "")
    if commit is None:
        commit = _as_text(ask(f"{repo}/revision/{quote(address.revision or 'main', safe='')}")[0]["sha"])
    found = HubListing(commit, [], "")
    if address.path and not WILDCARD.search(address.path):
        named = _files(ask(f"{repo}/paths-info/{commit}", {"paths": [address.path], "expand": False})[0])
        if named:
            return found._replace(files=named)
    found.files.extend(
        _pages(spec, f"{repo}/tree/{commit}{'/' if root else ''}{quote(root)}?recursive={deep}&expand=False", ask)
    )
    card = next((one for one in found.files if one.path == CARD and not address.path), None)
    if card is None:
        return found
    name = found.name(address, CARD)
    text = fetcher.read(Source(name, name, card.size, card.version), 0, min(card.size, CARD_BYTES))
    return found._replace(card=bytes(text).decode("utf-8", "replace"))


def _bucket_tree(repo: str, folder: str, deep: bool) -> str:
    return f"{repo}/tree{'/' if folder else ''}{quote(folder, safe='')}?recursive={deep}"


def _pages(spec: str, page: str, ask: Ask) -> list[ListedObject]:
    """The files of a list, page after page."""
    found: list[ListedObject] = []
    listed = set[str]()
    while page:
        some, following = ask(page)
        if listed and not some:  # though the page before it promised more
            some, following = ask(page)
        files, names = _files(some), {_as_text(entry["path"]) for entry in some}
        twice = len(names) < len(some) or any(one.path in listed for one in files)
        if twice or (following and names <= listed):
            # It has no end, or a page came in place of another one, whose files would be missing.
            message, hint = "the hub's list repeats itself", "run the same command again when the hub is well"
            raise Transient(message, tries=3, error=SourceError(message, place=public_url(spec), hint=hint))
        found.extend(files)
        listed |= names
        page = following
    return found


def _files(answer: Any) -> list[ListedObject]:
    """The files of one page of a list."""
    if not isinstance(answer, list):
        raise TypeError(answer)
    files = [
        ListedObject(_as_text(entry["path"]), int(entry["size"]), _version(entry))
        for entry in answer
        if entry["type"] == "file"
    ]
    if any(one.size < 0 or ".." in one.path.split("/") for one in files):
        raise ValueError(answer)
    return files


def _version(entry: dict[str, Any]) -> str:
    """What names the content of a file: Git's hash, that of LFS, or in buckets Xet's."""
    return _as_text(entry["xetHash"] if "oid" not in entry else (entry.get("lfs") or entry)["oid"])


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value
