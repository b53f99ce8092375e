"""Turns the messages of the object stores' library into errors that say what to do."""

from __future__ import annotations

import re

from shardmill.errors import OutputError, SourceError
from shardmill.storage.names import BUCKETS, host_of, scheme_of
from shardmill.storage.retrying import Transient

ErrorType = type[SourceError] | type[OutputError]

_TRANSIENT_STATUS = ("408", "409", "425", "429")
_TRANSIENT_CODES = (
    *("InternalError", "RequestTimeout", "OperationTimedOut"),
    *("ServiceUnavailable", "SlowDown", "ServerBusy"),
)
_WRONG_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AuthenticationFailed")
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
SETTINGS = {
    "s3": "credentials (AWS_PROFILE, AWS_ACCESS_KEY_ID …), bucket, region and AWS_ENDPOINT_URL",
    "gcs": "credentials (`gcloud auth application-default login`, GOOGLE_APPLICATION_CREDENTIALS) and bucket",
    "azure": "credentials (AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY …) and container",
}


def error_for(message: str, url: str, error: ErrorType, timeout: float) -> Transient | SourceError | OutputError:
    """Return what to raise for a message of the library. The message is not shown, because it may contain keys."""
    scheme, writing = scheme_of(url), error is OutputError
    origin = "" if writing else f" from {scheme}"
    code = code_in(message)
    found = re.search(r"status code: (\d{3})(?: ([A-Z][\w ]+))?", message)
    status = found[1] if found else ""
    detail = f" ({code or status})" if code or status else ""
    check_settings = f"check {SETTINGS[BUCKETS[scheme]]}"
    text = message.partition("\n\nDebug source")[0].lower()

    def refused(reason: str, hint: str | None = check_settings) -> SourceError | OutputError:
        return error(reason, place=url, hint=hint)

    if code in NO_BUCKET or (status == "404" and not code):
        return refused(
            f"there is no bucket `{host_of(url)}`", "create it, or correct its name" if writing else check_settings
        )
    if code in _WRONG_KEYS:
        return refused(f"the store does not accept the credentials{detail}")
    if status == "501" or code == "NotImplemented":
        needs = "it must upload in parts, and replace an object only if that is in a known version"
        return refused(f"the store does not know this kind of request{detail}", needs)
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUS or status[:1] == "5":
        return Transient((" ".join(dict.fromkeys(part for part in (status, code) if part)) or "no response") + origin)
    if code == "RequestTimeTooSkewed":
        return refused("the clock of this machine differs from that of the store", "set the clock")
    if code == "AccessDenied" or status == "403":
        verbs = "list, read, write and delete" if writing else "list and read"
        return refused(
            f"the store does not allow it{detail}", f"the credentials must allow to {verbs}; {check_settings}"
        )
    if status == "401" or "credential" in text or "metadata.google" in text or "169.254" in text:
        return refused(f"the store wants credentials{detail}")
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed") or status == "301":
        return refused(
            f"the bucket `{host_of(url)}` is in another region{detail}", "set AWS_REGION to the bucket's own"
        )
    if "invalid path" in text or "parsing path" in text:
        return refused(
            "the name of an object is not one of a file: it has an empty part, or one that is `.` or `..`",
            "rename it, or name the others by a pattern in another folder",
        )
    if "invalid list response" in text:
        return Transient(f"the answer is not a list{origin}")
    if "non-partial response" in text:
        no_ranges = refused("the store gives no parts of an object", "copy it to this machine first")
        return Transient(f"the store gave the whole object in place of a part{origin}", tries=3, error=no_ranges)
    if status or code:
        return refused(f"the store answers {' '.join(filter(None, (status, code and f'({code})')))}", None)
    if "TimedOut" in message or "timed out" in text:
        return Transient(f"no answer for {timeout:g} s{origin}")
    return Transient(("the connection was cut" if "body" in text else "no connection") + origin)


def code_in(message: str) -> str:
    """The store's own code for an error, if the message contains one."""
    found = re.search(r"<Code>(\w+)</Code>|\(code: (\w+)\)", message)  # the latter of one object of several
    return found[1] or found[2] if found else ""
