"""Publish a dataset at the Hugging Face hub, with its card. The manifest goes last, so half a dataset is none.

The hub's own library sends the files: it asks first which contents the hub has, so none is sent twice, and what a
killed call has sent stays there.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shardmill import arguments
from shardmill.dataset import Dataset, open_dataset
from shardmill.errors import DamageError, MismatchError, OutputError, UsageError
from shardmill.extras import needs
from shardmill.reporting.dataset_card import card
from shardmill.sources import list_hub
from shardmill.storage import Fetcher, HubAddress, Transient, file_blocks
from shardmill.units import plural, show_bytes
from shardmill.write import MANIFEST, Manifest, each_output, tables_in

T = TypeVar("T")

CARD = "README.md"
FILES_IN_A_COMMIT = 50
"""The hub recommends less than a hundred."""
LARGEST_FILE = 50 * 10**9
_MOST_IN_A_FOLDER, _MOST_FILES = 10_000, 100_000
_SHARDS = "a format with shards has smaller files: `shardmill convert DIR -o DIR2 -f shards`"
_TOKEN = "`hf auth login`, or set HF_TOKEN; the token must allow to write"
_LOOKED = "HF_TOKEN, and the file that `hf auth login` writes (HF_TOKEN_PATH)"
_KEPT = "what was sent stays at the hub; the same command goes on"


class _File(NamedTuple):
    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PublishedDataset:
    """A dataset at the hub."""

    url: str
    """Its address, with the commit, as `shardmill.open` takes it."""
    files: int
    sent: int
    """Files that were sent; the others were there."""
    bytes_sent: int

    def __str__(self) -> str:
        there = f", {self.files - self.sent:,} were there" if self.sent < self.files else ""
        sent = f"{plural(self.sent, 'file')} sent ({show_bytes(self.bytes_sent)}){there}"
        return f"{sent}; published and read back: {self.url}"


def publish(
    folder: str | os.PathLike[str],
    to: str,
    *,
    private: bool = False,
    overwrite: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> PublishedDataset:
    """Publish the dataset in a folder at `hf://datasets/OWNER/NAME[@BRANCH]` or `hf://buckets/OWNER/NAME`.

    The repository and the branch are made if they are missing; `private` counts only then. The same call goes on with
    an unfinished one, and sends nothing that is there already. Another dataset at the address is an error, or is
    replaced with `overwrite`. `notify` is told about each file. Raise UsageError before anything is sent if the hub
    would not take the files, OutputError if it refuses or cannot be reached.
    """
    named, to = arguments.path("folder", folder), arguments.text("to", to)
    private, overwrite = arguments.flag("private", private), arguments.flag("overwrite", overwrite)
    address = HubAddress.parse(to)
    if address.path or address.is_commit:
        hint = "write `hf://datasets/OWNER/NAME`, with `@BRANCH` after the name if it is not `main`"
        raise UsageError("a dataset is published as a repository or branch of its own", place=to, hint=hint)
    data = open_dataset(named)
    if not isinstance(data.folder, Path):
        raise UsageError("only a folder of this machine can be published", hint="`shardmill convert` copies it here")
    files = list(_files(data.manifest))
    _check_limits(files)
    library = needs("huggingface_hub", "hf", "publishing")
    token = library.get_token()
    if not token:
        raise UsageError(f"the hub needs a token, and there is none in {_LOOKED}", hint=_TOKEN)
    kind = _Repository if address.kind == "datasets" else _Bucket
    with Fetcher() as fetcher:
        target = kind(address, library, token, fetcher)
        target.create(private)
        there = _without_other(target, data, overwrite)
        missing = [file for file in files if not _is_there(file, data.folder, there)]
        for first in range(0, len(missing), FILES_IN_A_COMMIT):
            some = missing[first : first + FILES_IN_A_COMMIT]
            for file in some:
                notify(f"{file.name} ({show_bytes(file.bytes)})")
                _check_content(data.folder / file.name, file)
            target.add({file.name: data.folder / file.name for file in some})
        if missing or MANIFEST not in there:
            target.add(_last_files(data, target, there))
        url = target.address_now()
    _check_published(url, data, files)
    return PublishedDataset(url, len(files), len(missing), sum(file.bytes for file in missing))


def _files(manifest: Manifest) -> Iterator[_File]:
    """The files of a dataset that its manifest names."""
    entries = [
        file
        for output in each_output(manifest)
        for split in output["splits"].values()
        for file in (*split["files"], *tables_in(split))
    ]
    entries += [manifest["rejects"]] if "rejects" in manifest else []
    return (_File(file["name"], file["bytes"], file["sha256"]) for file in entries)


def _is_there(file: _File, folder: Path, there: dict[str, str]) -> bool:
    """Whether the hub has a file: it lists large ones by their sha256, and small ones by Git's hash."""
    version = there.get(file.name, "")
    if len(version) != len(hashlib.sha1().hexdigest()):
        return version == file.sha256
    content = (folder / file.name).read_bytes()
    return version == hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()


def _check_limits(files: list[_File]) -> None:
    """Raise UsageError for what the hub does not take."""
    largest = max(files, key=lambda file: file.bytes)
    if largest.bytes > LARGEST_FILE:
        raise UsageError(
            f"`{largest.name}` has {show_bytes(largest.bytes)}, and the hub takes files up to "
            f"{show_bytes(LARGEST_FILE)}",
            hint=_SHARDS,
        )
    folders = Counter(os.path.dirname(file.name) for file in files)
    crowded, most = folders.most_common(1)[0]
    if most > _MOST_IN_A_FOLDER or len(files) > _MOST_FILES:
        raise UsageError(
            f"`{crowded or '.'}` has {most:,} files, and the hub takes up to {_MOST_IN_A_FOLDER:,} in a folder",
            hint="larger shards are fewer: `shardmill convert DIR -o DIR2 --shard-tokens N`",
        )


def _check_content(path: Path, file: _File) -> None:
    """Raise DamageError if a file is not what the manifest says: it would be published so."""
    digest = hashlib.sha256()
    for block in file_blocks(path):
        digest.update(block)
    if digest.hexdigest() != file.sha256:
        raise DamageError("its sha256 is not that of the manifest", place=str(path), hint="see `shardmill verify`")


def _without_other(target: _Target, data: Dataset, overwrite: bool) -> dict[str, str]:
    """Return the files that are there with their hashes; MismatchError if they are another dataset.

    With `overwrite` that is removed first, so that nobody takes a mixture of two for a dataset.
    """
    there = target.there()
    if MANIFEST not in there:
        return there
    other = open_dataset(target.address_now()).manifest
    if other["fingerprint"] == data.manifest["fingerprint"]:
        return there
    if not overwrite:
        raise MismatchError(
            "another dataset is published there",
            place=target.address,
            hint="choose another name or branch, or replace it with `--overwrite`",
        )
    assert isinstance(data.folder, Path)
    kept = {file.name for file in _files(data.manifest) if _is_there(file, data.folder, there)}
    target.delete([MANIFEST, *sorted({file.name for file in _files(other)} & there.keys() - kept)])
    return target.there()


def _last_files(data: Dataset, target: _Target, there: dict[str, str]) -> dict[str, Path | bytes]:
    """What makes a dataset of the files: its card, unless there is one, and the manifest."""
    assert isinstance(data.folder, Path)
    last: dict[str, Path | bytes] = {}
    if (data.folder / CARD).exists():
        last[CARD] = data.folder / CARD
    elif CARD not in there:
        last[CARD] = card(data.folder, address=target.address).encode()
    return {**last, MANIFEST: data.folder / MANIFEST}


def _check_published(url: str, data: Dataset, files: list[_File]) -> None:
    """Read the manifest back, and compare the list of the hub's files with it. DamageError if they differ."""
    found = open_dataset(url)
    same = found.manifest["fingerprint"] == data.manifest["fingerprint"] and list(_files(found.manifest)) == files
    for file in files:
        version = getattr(found.folder / file.name, "version", "")
        # A small file has Git's hash, a file in a bucket that of Xet.
        same &= url.startswith("hf://buckets/") or len(version) != len(file.sha256) or version == file.sha256
    if not same:
        raise DamageError("the hub has other files than were sent", place=url, hint="publish it again")


class _Target(ABC):
    """A place at the hub. Each call is retried while another attempt may succeed."""

    def __init__(self, address: HubAddress, library: Any, token: str, fetcher: Fetcher) -> None:
        self._parsed, self._library, self._fetcher = address, library, fetcher
        at = f"@{address.revision}" if address.revision else ""
        self.address = f"hf://{address.kind}/{address.repo}{at}"
        self._api = library.HfApi(token=token, library_name="shardmill")
        library.utils.disable_progress_bars()

    @abstractmethod
    def create(self, private: bool) -> None:
        """Make the repository, unless it is there."""

    @abstractmethod
    def add(self, files: dict[str, Any]) -> None:
        """Send files, by their names there."""

    @abstractmethod
    def delete(self, names: list[str]) -> None:
        """Remove files."""

    def there(self) -> dict[str, str]:
        """The files that are there, with their hashes."""
        listing = list_hub(self.address, self._parsed, None, self._fetcher)
        self._commit = listing.commit
        return {path: version for path, _, version in listing.files}

    def address_now(self) -> str:
        """The address with the commit as it is now."""
        self.there()
        return f"hf://{self._parsed.kind}/{self._parsed.repo}" + (f"@{self._commit}" if self._commit else "")

    def _call(self, call: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return call()
            except Exception as error:
                failure = _failure(error, self.address)
                if failure is None:
                    raise
                raise failure from None

        return self._fetcher.retry(attempt, self.address)


class _Repository(_Target):
    """A dataset repository: commits on a branch."""

    def create(self, private: bool) -> None:
        repo, branch = self._parsed.repo, self._parsed.revision
        self._call(lambda: self._api.create_repo(repo, repo_type="dataset", private=private or None, exist_ok=True))
        if branch:
            self._call(lambda: self._api.create_branch(repo, branch=branch, repo_type="dataset", exist_ok=True))

    def add(self, files: dict[str, Any]) -> None:
        added = self._library.CommitOperationAdd
        self._commit_all(lambda: [added(name, source if isinstance(source, bytes) else str(source))
                                  for name, source in files.items()], f"Add {plural(len(files), 'file')}")  # fmt: skip

    def delete(self, names: list[str]) -> None:
        removed = self._library.CommitOperationDelete
        for first in range(0, len(names), FILES_IN_A_COMMIT):
            there = self.there()  # the answer to an earlier attempt may have been lost
            some = [name for name in names[first : first + FILES_IN_A_COMMIT] if name in there]
            self._commit_all(lambda some=some: [removed(name) for name in some], "Remove another dataset")  # type: ignore[misc]

    def _commit_all(self, operations: Callable[[], list[Any]], message: str) -> None:
        """Commit operations, which are made anew for each attempt: the library keeps in them what it has done."""
        self._call(
            lambda: self._api.create_commit(
                self._parsed.repo,
                operations(),
                commit_message=message,
                repo_type="dataset",
                revision=self._parsed.revision or None,
            )
        )


class _Bucket(_Target):
    """A bucket of the hub, which has no commits. Its store compares contents in chunks, and takes only new ones."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if not hasattr(self._api, "batch_bucket_files"):
            raise UsageError(
                "this release of huggingface_hub knows no buckets",
                hint="`pip install -U huggingface_hub`, or publish to `hf://datasets/OWNER/NAME`",
            )

    def create(self, private: bool) -> None:
        repo = self._parsed.repo
        self._call(lambda: self._api.create_bucket(repo, private=private or None, exist_ok=True))

    def add(self, files: dict[str, Any]) -> None:
        added = [(source, name) for name, source in files.items() if name != MANIFEST]
        if added:
            self._call(lambda: self._api.batch_bucket_files(self._parsed.repo, add=added))
        if MANIFEST in files:  # several files are not added at once
            last = [(files[MANIFEST], MANIFEST)]
            self._call(lambda: self._api.batch_bucket_files(self._parsed.repo, add=last))

    def delete(self, names: list[str]) -> None:
        self._call(lambda: self._api.batch_bucket_files(self._parsed.repo, delete=names))


_TRANSIENT = (408, 409, 412, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524)


def _failure(error: BaseException, place: str) -> Transient | OutputError | None:
    """What to raise for an error of the hub's library; None: it is not one. Its message may hold a signed URL."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    answers = [getattr(one, "response", None) for one in chain]
    status = next((int(answer.status_code) for answer in answers if answer is not None), None)
    kinds = {base.__name__ for one in chain for base in type(one).__mro__}
    if status is None and not kinds & {"HTTPError", "RequestException", "OSError", "JSONDecodeError"}:
        return None
    if status is None or status in _TRANSIENT:
        reason = f"the hub answers {status}" if status else "no connection to the hub"
        again = OutputError(reason, place=place, kept=_KEPT, hint="run the same command again later")
        return Transient(reason, error=again)
    if status in (401, 403):
        return OutputError(f"the hub does not allow it ({status})", place=place, kept=_KEPT, hint=_TOKEN)
    hint = "check the address" if status == 404 else None
    return OutputError(f"the hub answers {status}", place=place, kept=_KEPT, hint=hint)
