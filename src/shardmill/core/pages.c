/* Pages of parquet columns: where their texts stand, how these are put together, and Snappy. */
#include "core.h"

#include <string.h>

static uint32_t word(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }

int64_t sm_texts(const uint8_t *data, int64_t n, int64_t at, int64_t rows, int64_t *starts, int64_t *lengths) {
    if (at < 0) return SM_ERROR_ARGUMENT;
    for (int64_t i = 0; i < rows; i++) {
        if (n - at < 4) return SM_ERROR_ARGUMENT;
        int64_t length = word(data + at);
        at += 4;
        if (length > n - at) return SM_ERROR_ARGUMENT;
        starts[i] = at;
        lengths[i] = length;
        at += length;
    }
    return at;
}

int64_t sm_gather(const uint8_t *data, int64_t n, const int64_t *starts, const int64_t *lengths,
                  const int64_t *prefixes, int64_t rows, uint8_t *out, int64_t at, int64_t room) {
    int64_t before = 0; /* where the row before begins in `out` */
    if (at < 0 || at > room) return SM_ERROR_ARGUMENT;
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = starts[i], length = lengths[i], prefix = prefixes ? prefixes[i] : 0;
        if (start < 0 || length < 0 || start > n || length > n - start) return SM_ERROR_ARGUMENT;
        if (prefix < 0 || prefix > at - before) return SM_ERROR_ARGUMENT;
        if (prefix > room - at || length > room - at - prefix) return SM_ERROR_SPACE;
        if (prefix) memcpy(out + at, out + before, (size_t)prefix);
        if (length) memcpy(out + at + prefix, data + start, (size_t)length);
        before = at;
        at += prefix + length;
    }
    return at;
}

/* `length` bytes from `distance` before `to`, which may overlap with themselves: then they repeat. */
static void repeat(uint8_t *to, int64_t distance, int64_t length) {
    const uint8_t *from = to - distance;
    for (; distance >= 8 && length >= 8; length -= 8, to += 8, from += 8) memcpy(to, from, 8);
    for (; length > 0; length--) *to++ = *from++;
}

/* https://github.com/google/snappy/blob/main/format_description.txt */
int64_t sm_snappy(const uint8_t *stored, int64_t n, uint8_t *out, int64_t size) {
    int64_t at = 0, made = 0;
    uint64_t promised = 0;
    for (int shift = 0;; shift += 7) {
        if (at >= n || shift > 28) return SM_ERROR_ARGUMENT;
        promised |= (uint64_t)(stored[at] & 127) << shift;
        if (!(stored[at++] & 128)) break;
    }
    if ((int64_t)promised != size) return SM_ERROR_ARGUMENT;
    while (at < n) {
        uint8_t tag = stored[at++];
        int64_t length = (tag >> 2) + 1, more = 0, distance;
        if ((tag & 3) == 0) { /* as it is */
            if (length > 60) {
                more = length - 60; /* so many bytes have the length */
                if (more > n - at) return SM_ERROR_ARGUMENT;
                length = 1;
                for (int64_t i = 0; i < more; i++) length += (int64_t)stored[at + i] << (8 * i);
                at += more;
            }
            if (length > n - at || length > size - made) return SM_ERROR_ARGUMENT;
            if (length <= 16 && n - at >= 16 && size - made >= 16)
                memcpy(out + made, stored + at, 16); /* a copy of fixed size is faster, and what is too much is overwritten */
            else
                memcpy(out + made, stored + at, (size_t)length);
            at += length;
            made += length;
            continue;
        }
        more = (tag & 3) == 3 ? 4 : tag & 3;
        if (more > n - at) return SM_ERROR_ARGUMENT;
        if (more == 1) {
            length = (tag >> 2 & 7) + 4;
            distance = (int64_t)(tag >> 5) << 8 | stored[at];
        } else {
            distance = more == 2 ? stored[at] | (int64_t)stored[at + 1] << 8 : (int64_t)word(stored + at);
        }
        at += more;
        if (distance < 1 || distance > made || length > size - made) return SM_ERROR_ARGUMENT;
        if (distance >= 16 && length <= 64 && size - made >= 64)
            for (int64_t i = 0; i < length; i += 16) memcpy(out + made + i, out + made - distance + i, 16);
        else
            repeat(out + made, distance, length);
        made += length;
    }
    return made == size ? made : SM_ERROR_ARGUMENT;
}
