/* Ids of documents, dealt to two splits with EOT in place. */
#include "core.h"

#include <string.h>

static uint8_t *put(uint8_t *to, uint32_t id, int32_t wide) {
    uint16_t narrow = (uint16_t)id;
    if (wide)
        memcpy(to, &id, sizeof id);
    else
        memcpy(to, &narrow, sizeof narrow);
    return to + (wide ? 4 : 2);
}

int32_t sm_deal(const void *ids, int64_t n, int32_t wide, const int64_t *starts, const int64_t *lengths, int64_t rows,
                const uint8_t *marks, const uint8_t *second, uint32_t eot, int32_t before, void *out, int64_t border,
                int64_t room) {
    const int64_t width = wide ? 4 : 2;
    int64_t next[2] = {0, border}, stop[2] = {border, room};
    if (border < 0 || border > room) return SM_ERROR_ARGUMENT;
    for (int64_t i = 0; i < rows; i++) {
        int64_t start = starts[i], length = lengths[i];
        int split = second[i] != 0, mark = marks[i] != 0;
        if (start < 0 || length < 0 || start > n || length > n - start) return SM_ERROR_ARGUMENT;
        if (length > stop[split] - next[split] - mark) return SM_ERROR_SPACE;
        uint8_t *to = (uint8_t *)out + next[split] * width;
        if (mark && before) to = put(to, eot, wide);
        if (length) memcpy(to, (const uint8_t *)ids + start * width, (size_t)(length * width));
        if (mark && !before) put(to + length * width, eot, wide);
        next[split] += length + mark;
    }
    return next[0] == border && next[1] == room ? 0 : SM_ERROR_ARGUMENT;
}
