/* Texts that stand in several places, put together. */
#include "core.h"

#include <string.h>

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
