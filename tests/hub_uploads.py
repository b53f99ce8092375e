"""How the hub on this machine takes what is sent to it: repositories, branches, LFS objects, multipart, commits."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from tests.hub import Hub

LFS_FROM = 1 << 10
"""Bytes from which a file is stored by LFS."""
PART = 1 << 20
"""Bytes of a part; larger objects are sent in parts."""

Answer = tuple[int, Any, dict[str, str]]
"""Status, JSON, headers."""


def git_oid(data: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def answer(hub: Hub, method: str, path: str, body: bytes) -> Answer | None:
    """Answer a request that sends something; None: it is not one."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if path == "/api/repos/create":
        return _create(hub, json.loads(body))
    if path == "/api/validate-yaml":
        return 200, {"errors": [], "warnings": []}, {}
    if parts[0] == "lfs":
        return _object(hub, method, parts[1:], body)
    if parts[0] == "datasets" and parts[-3:] == ["lfs", "objects", "batch"]:
        return _batch(hub, json.loads(body))
    if parts[:2] != ["api", "datasets"] or method != "POST" or len(parts) < 6:
        return None
    repo, what, revision = "/".join(parts[2:4]), parts[4], "/".join(parts[5:])
    if what == "branch":
        return _branch(hub, repo, revision)
    if what == "preupload":
        return _preupload(hub, repo, revision, json.loads(body))
    if what == "commit":
        return _commit(hub, repo, revision, body)
    return None


def _create(hub: Hub, asked: dict[str, Any]) -> Answer:
    repo = "/".join(filter(None, (asked.get("organization") or "me", asked["name"])))
    url = f"{hub.url}/datasets/{repo}"
    if repo in hub.repos:
        return 409, {"error": "You already created this dataset repo", "url": url}, {}
    hub.add(
        repo,
        {".gitattributes": b"*.bin filter=lfs\n"},
        private=bool(asked.get("private")) or asked.get("visibility") == "private",
    )
    return 200, {"url": url, "name": repo}, {}


def _branch(hub: Hub, repo: str, branch: str) -> Answer:
    branches = hub.repos[repo].branches
    if branch in branches:
        return 409, {"error": "Reference already exists"}, {}
    branches[branch] = branches["main"]
    return 200, {}, {}


def _preupload(hub: Hub, repo: str, revision: str, asked: dict[str, Any]) -> Answer:
    made = hub.repos[repo]
    there = made.commits[made.branches[revision]]
    files = []
    for file in asked["files"]:
        old = there.get(file["path"])
        lfs = file["size"] >= LFS_FROM
        oid = None
        if isinstance(old, bytes):
            oid = hashlib.sha256(old).hexdigest() if lfs else git_oid(old)
        mode = "lfs" if lfs else "regular"
        files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return 200, {"files": files}, {}


def _batch(hub: Hub, asked: dict[str, Any]) -> Answer:
    """What LFS has to do for each object: nothing where the hub has it."""
    objects: list[dict[str, Any]] = []
    for one in asked["objects"]:
        oid, size = one["oid"], one["size"]
        entry: dict[str, Any] = {"oid": oid, "size": size}
        if oid not in hub.stored:
            upload: dict[str, Any] = {"href": f"{hub.url}/lfs/{oid}"}
            if size > PART:
                parts = {str(n + 1): f"{hub.url}/lfs/{oid}/{n}" for n in range(-(-size // PART))}
                upload = {"href": f"{hub.url}/lfs/{oid}/complete", "header": {"chunk_size": str(PART), **parts}}
            verify = {"href": f"{hub.url}/lfs/{oid}/verify"}
            entry["actions"] = {"upload": upload, "verify": verify}
        objects.append(entry)
    return 200, {"objects": objects, "transfer": "basic"}, {}


def _object(hub: Hub, method: str, parts: list[str], body: bytes) -> Answer:
    oid, what = parts[0], parts[1] if len(parts) > 1 else ""
    if what == "verify":
        wanted = json.loads(body)
        whole = len(hub.stored.get(oid, b"")) == wanted["size"]
        return (200 if whole else 422), {}, {}
    if what == "complete" and oid in hub.stored:  # the answer was lost
        return 200, {}, {}
    if what == "complete":
        pieces = hub.pieces.pop(oid, {})
        data = b"".join(pieces[n] for n in sorted(pieces))
    else:
        hub.taken[oid] = hub.taken.get(oid, 0) + len(body)
        if what:
            hub.pieces.setdefault(oid, {})[int(what)] = body
            return 200, {}, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}
        data = body
    if hashlib.sha256(data).hexdigest() != oid:
        return 400, {"error": "another content"}, {}
    hub.stored[oid] = data
    return 200, {}, {}


def _commit(hub: Hub, repo: str, branch: str, body: bytes) -> Answer:
    made = hub.repos[repo]
    files = dict(made.commits[made.branches[branch]])
    for line in body.splitlines():
        entry = json.loads(line)
        value = entry["value"]
        if entry["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif entry["key"] == "lfsFile":
            if value["oid"] not in hub.stored:
                return 400, {"error": "the object was not uploaded"}, {}
            files[value["path"]] = hub.stored[value["oid"]]
        elif entry["key"] == "deletedFile" and files.pop(value["path"], None) is None:
            return 404, {"error": "A file with this name doesn't exist"}, {}
    sha = hub.commit(repo, files, branch)
    return 200, {"commitUrl": f"{hub.url}/datasets/{repo}/commit/{sha}", "commitOid": sha}, {}
