/* Texts that stand in several places, put together. */
#include "core.h"

#include <string.h>

int64_t sm_gather(const uint8_t *data, int64_t n, const int64_t *starts, const int64_t *lengths, int64_t rows,
                  uint8_t *out, int64_t room) {
    int64_t at = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = starts[i], length = lengths[i];
        if (start < 0 || length < 0 || start > n || length > n - start) return SM_ERROR_ARGUMENT;
        if (length > room - at) return SM_ERROR_SPACE;
        if (length) memcpy(out + at, data + start, (size_t)length);
        at += length;
    }
    return at;
}
