/* Many small reads of a file in one call. */
#define _XOPEN_SOURCE 700
#define _FILE_OFFSET_BITS 64
#include "core.h"

#include <errno.h>
#include <unistd.h>

int64_t sm_read_parts(int32_t file, const int64_t *starts, const int64_t *lengths, const int64_t *places, int64_t rows,
                      uint8_t *out, int64_t room) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = starts[i], length = lengths[i], place = places[i];
        if (start < 0 || length < 0 || place < 0) return SM_ERROR_ARGUMENT;
        if (place > room || length > room - place) return SM_ERROR_SPACE;
        while (length) {
            ssize_t got = pread(file, out + place, (size_t)length, (off_t)start);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return SM_ERROR_READING;
            if (got == 0) return i;
            start += got, place += got, length -= got;
        }
    }
    return rows;
}
