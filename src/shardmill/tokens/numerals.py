"""Where a group of digits begins, for split patterns that group them by three."""

from __future__ import annotations

import re
from functools import cache

from shardmill.tokens.unicode_mismatch import ranges

# \p{N} in tiktoken 0.14 and tokenizers 0.23, which is that of Unicode 16. Written out, since Python's own tables are
# older or newer than the libraries'.
NUMBERS = (
    "0030-0039 00B2-00B3 00B9 00BC-00BE 0660-0669 06F0-06F9 07C0-07C9 0966-096F 09E6-09EF 09F4-09F9 0A66-0A6F "
    "0AE6-0AEF 0B66-0B6F 0B72-0B77 0BE6-0BF2 0C66-0C6F 0C78-0C7E 0CE6-0CEF 0D58-0D5E 0D66-0D78 0DE6-0DEF "
    "0E50-0E59 0ED0-0ED9 0F20-0F33 1040-1049 1090-1099 1369-137C 16EE-16F0 17E0-17E9 17F0-17F9 1810-1819 "
    "1946-194F 19D0-19DA 1A80-1A89 1A90-1A99 1B50-1B59 1BB0-1BB9 1C40-1C49 1C50-1C59 2070 2074-2079 2080-2089 "
    "2150-2182 2185-2189 2460-249B 24EA-24FF 2776-2793 2CFD 3007 3021-3029 3038-303A 3192-3195 3220-3229 "
    "3248-324F 3251-325F 3280-3289 32B1-32BF A620-A629 A6E6-A6EF A830-A835 A8D0-A8D9 A900-A909 A9D0-A9D9 "
    "A9F0-A9F9 AA50-AA59 ABF0-ABF9 FF10-FF19 10107-10133 10140-10178 1018A-1018B 102E1-102FB 10320-10323 10341 "
    "1034A 103D1-103D5 104A0-104A9 10858-1085F 10879-1087F 108A7-108AF 108FB-108FF 10916-1091B 109BC-109BD "
    "109C0-109CF 109D2-109FF 10A40-10A48 10A7D-10A7E 10A9D-10A9F 10AEB-10AEF 10B58-10B5F 10B78-10B7F 10BA9-10BAF "
    "10CFA-10CFF 10D30-10D39 10D40-10D49 10E60-10E7E 10F1D-10F26 10F51-10F54 10FC5-10FCB 11052-1106F 110F0-110F9 "
    "11136-1113F 111D0-111D9 111E1-111F4 112F0-112F9 11450-11459 114D0-114D9 11650-11659 116C0-116C9 116D0-116E3 "
    "11730-1173B 118E0-118F2 11950-11959 11BF0-11BF9 11C50-11C6C 11D50-11D59 11DA0-11DA9 11F50-11F59 11FC0-11FD4 "
    "12400-1246E 16130-16139 16A60-16A69 16AC0-16AC9 16B50-16B59 16B5B-16B61 16D70-16D79 16E80-16E96 1CCF0-1CCF9 "
    "1D2C0-1D2D3 1D2E0-1D2F3 1D360-1D378 1D7CE-1D7FF 1E140-1E149 1E2F0-1E2F9 1E4F0-1E4F9 1E5F1-1E5FA 1E8C7-1E8CF "
    "1E950-1E959 1EC71-1ECAB 1ECAD-1ECAF 1ECB1-1ECB4 1ED01-1ED2D 1ED2F-1ED3D 1F100-1F10C 1FBF0-1FBF9"
)
# Numbers since Unicode 17: not to be counted with either version in mind.
UNSURE = "11DE0-11DE9 16FF4-16FF6"


def _one_of(text: str) -> str:
    return "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges(text)) + "]"


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """A number, a run of them, one that is not sure. Compiled when first needed: 12 ms, and few runs need them."""
    return re.compile(_one_of(NUMBERS)), re.compile(_one_of(NUMBERS) + "*"), re.compile(_one_of(UNSURE))


def begins_group(text: bytes, place: int, group: int) -> bool:
    """Whether a group of digits, or something else, begins at this place, given that one may begin with the text."""
    number, numbers, unsure = _patterns()
    after = text[place : place + 4].decode(errors="ignore")[:1]
    before = text[:place]
    if not number.match(after) and not unsure.match(after):
        return True
    digits = len(before) - len(before.rstrip(b"0123456789"))
    rest = before[: len(before) - digits]
    if rest and rest[-1] >= 0x80:
        backwards = rest.decode()[::-1]
        others = numbers.match(backwards)
        digits += others.end() if others else 0
        if unsure.match(backwards[others.end() if others else 0 :][:1]):
            return False
    return not unsure.match(after) and digits % group == 0
