"""Objects below a URL of S3, Google's or Azure's store: each there whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from shardmill.errors import OutputError, UsageError
from shardmill.extras import needs
from shardmill.storage.s3 import S3Account

SCHEMES = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""Of URLs, and the extra that each needs."""

ROOM = 48 << 20
"""Bytes of memory that an upload or a download takes at the most."""

_PART = 8 << 20
_PARTS = 10_000  # in one upload, at the most; S3's own limit
LARGEST = _PARTS * ROOM // 2
"""Bytes of an object: so large that two of its parts fit in ROOM."""

# What a request may take, and for how long one that failed is tried again.
_SECONDS, _CONNECT_SECONDS = 120, 10
_RETRIES, _RETRY_SECONDS = 8, 120

Version = dict[str, str]
"""What tells one state of an object from the next."""


class Unanswered(OutputError):
    """The store may have done it, or not: it did not say."""


def is_url(out: object) -> bool:
    """Whether an output is an object store's; UsageError for a URL that is none."""
    scheme = re.match(r"([A-Za-z][\w+.-]+)://", str(out))
    if scheme and scheme[1].lower() not in SCHEMES:
        raise UsageError(
            f"nothing can be written to `{scheme[1]}://`", hint="a folder, or a URL of s3://, gs:// or az://"
        )
    return scheme is not None


class ObjectStore:
    """The objects below one URL, by their names from there on. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """UsageError when the URL or the library is missing, OutputError when there are no credentials."""
        scheme, _, path = url.partition("://")
        self._bucket, _, prefix = path.partition("/")
        prefix = prefix.strip("/")
        if not self._bucket or re.search(r"[?#]|//", path):
            raise UsageError(f"`{url}` is not the URL of a folder", hint=f"write {scheme}://BUCKET/FOLDER")
        self.url = f"{scheme.lower()}://{self._bucket}" + (f"/{prefix}" if prefix else "")
        self._prefix = f"{prefix}/" if prefix else ""
        extra, who = SCHEMES[scheme.lower()], f"writing to {scheme.lower()}://"
        self._library = needs("obstore", extra, who)
        self._errors = needs("obstore.exceptions", extra, who)
        self._account = S3Account(self._bucket) if extra == "s3" else None
        self.progressed = time.monotonic()
        """When the store last did something for us."""
        with self._asking(""):
            self._store = needs("obstore.store", extra, who).from_url(
                self.url,
                client_options={
                    "timeout": timedelta(seconds=_SECONDS),
                    "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
                    # An endpoint of http:// is used only when somebody has set one.
                    "allow_http": True,
                },
                retry_config={
                    "max_retries": _RETRIES,
                    "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
                    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=20)},
                },
                **(self._account.settings() if self._account else {}),
            )

    def read(self, name: str) -> tuple[bytes, Version] | None:
        """A small object and its version; None when there is none."""
        with self._asking(name):
            try:
                got = self._library.get(self._store, name)
                return bytes(got.bytes()), _version(got.meta)
            except FileNotFoundError as why:
                if "NoSuchBucket" in str(why) or "ContainerNotFound" in str(why):
                    raise
                return None

    def version(self, name: str) -> Version | None:
        """That of an object; None when there is none."""
        with self._asking(name):
            try:
                return _version(self._library.head(self._store, name))
            except FileNotFoundError:
                return None

    def size(self, name: str) -> int:
        """Bytes of an object; FileNotFoundError when there is none."""
        with self._asking(name):
            try:
                return int(self._library.head(self._store, name)["size"])
            except FileNotFoundError:
                missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        raise missing

    def put(self, name: str, data: bytes) -> None:
        """A small object, whatever stood there."""
        with self._asking(name):
            self._library.put(self._store, name, data, use_multipart=False)

    def exchange(self, name: str, data: bytes, before: Version | None) -> Version | None:
        """A small object in the place of the version `before` (None: of nothing); None when another one stands there.

        One that stands there may also be this one: an answer may be lost on its way.
        """
        with self._asking(name):
            try:
                return _version(self._library.put(self._store, name, data, mode=before or "create"))
            except (self._errors.PreconditionError, self._errors.AlreadyExistsError, FileNotFoundError) as why:
                if "NoSuchBucket" in str(why):
                    raise
                return None

    def upload(self, name: str, blocks: Iterable[bytes], size: int) -> None:
        """An object of any size, which is there when all of it is: nothing remains of an upload that fails."""
        if size <= _PART:
            self.put(name, b"".join(blocks))
            return
        part = max(_PART, -(-size // _PARTS))
        check_size(name, size, self.url)
        with self._asking(name):
            self._library.put(
                self._store,
                name,
                self._counted(blocks),
                use_multipart=True,
                chunk_size=part,
                max_concurrency=max(1, ROOM // part - 1),
            )

    def download(self, name: str) -> Iterator[bytes]:
        """An object in blocks of about a megabyte; OutputError when it is not there."""
        with self._asking(name):
            yield from self._counted(
                bytes(block) for block in self._library.get(self._store, name).stream(min_chunk_size=1 << 20)
            )

    def beside(self, folders: Iterable[str]) -> dict[str, int]:
        """The objects directly in these folders (the URL's own is ``""``), with their sizes."""
        found = {}
        for folder in folders:
            with self._asking(folder):
                listed = self._library.list_with_delimiter(self._store, folder or None)
            found.update({entry["path"]: entry["size"] for entry in listed["objects"]})
        return found

    def below(self, folder: str) -> Iterator[tuple[str, int]]:
        """The objects anywhere below a folder, with their sizes."""
        with self._asking(folder):
            for some in self._library.list(self._store, f"{folder}/", chunk_size=1000):
                yield from ((entry["path"], entry["size"]) for entry in some)

    def delete(self, names: Iterable[str]) -> None:
        """As if they had never been; one that is not there is no error."""
        names = list(names)
        for start in range(0, len(names), 1000):
            with self._asking(names[start]):
                try:
                    self._library.delete(self._store, names[start : start + 1000])
                except FileNotFoundError:  # said by stores that know no other answer
                    continue

    def abort_uploads(self, ours: Callable[[str], bool]) -> None:
        """End uploads that a killed run has left open. Only S3 lets us list them; elsewhere they end by themselves."""
        if self._account is not None:
            self._account.abort_uploads(self._prefix, ours, self.url)

    def _counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.progressed = time.monotonic()
            yield block

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """Turns what the store refuses into an OutputError that names the object."""
        try:
            yield
        except (self._errors.BaseError, OSError) as why:
            raise refusal(str(why), self._bucket, f"{self.url}/{name}".rstrip("/")) from None
        self.progressed = time.monotonic()


def check_size(name: str, size: int, url: str) -> None:
    """OutputError when an object would be too large to be sent in parts that fit in memory."""
    if size > LARGEST:
        raise OutputError(
            f"`{name}` would have {size:,} bytes, and one object may have {LARGEST:,}",
            place=url,
            hint="choose a format with shards, such as `-f shards`",
        )


def refusal(said: str, bucket: str, place: str) -> OutputError:
    """What a person is told. The library's own words are left out: they may hold keys and signed requests."""
    code = (re.findall(r"<Code>(\w+)</Code>", said) or re.findall(r"status code: (\d{3} [A-Z][\w ]+)", said) or [""])[0]
    told = f" ({code})" if code else ""
    lower = said.lower()
    if code in ("NoSuchBucket", "ContainerNotFound") or ("404" in code and "<Code>" not in said):
        return OutputError(f"there is no bucket `{bucket}`", place=place, hint="create it, or correct its name")
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthenticationFailed"):
        return _unknown(f"the store does not accept the credentials{told}", place)
    if code == "AccessDenied" or "403" in code:
        return OutputError(
            f"the store does not allow it{told}",
            place=place,
            hint="the credentials must allow to list, read, write and delete below the URL",
        )
    if "401" in code or "credential" in lower or "metadata.google" in lower or "169.254" in lower:
        return _unknown(f"the store wants credentials{told}", place)
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed") or "301" in code:
        return OutputError(
            f"the bucket `{bucket}` is in another region{told}", place=place, hint="set AWS_REGION to the bucket's own"
        )
    tried = re.search(r"after (\d+) retries", said)
    reason = code or ("no answer in time" if "timed out" in lower or "timeout" in lower else "no connection")
    return Unanswered(
        f"the store did not do it: {reason}" + (f", tried {int(tried[1]) + 1} times" if tried else ""),
        place=place,
        hint="run the same command again when the store can be reached",
    )


def _unknown(message: str, place: str) -> OutputError:
    return OutputError(
        message,
        place=place,
        hint="set them where the store's own tools look: environment variables, or profile files (AWS_PROFILE)",
    )


def _version(meta: Any) -> Version:
    return {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}
