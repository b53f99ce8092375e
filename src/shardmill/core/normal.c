/* Whether text is in Unicode's normal form C already, as nearly all text is. */
#include "model.h"
#include "normal_tables.h"

/* A class has the order of a mark among marks, or 0, and two flags: the character becomes one with some others before it,
 * or it is itself made of several. */
enum { END_OF_TABLE = 0x20000, UNKNOWN = 255, COMPOSES = 128, COMPOSED = 64, ORDER = 63 };


static u32 normal_class(u32 code) {
    return code < END_OF_TABLE ? NORMAL[NORMAL_BLOCK[code >> 7]][code & 127] : UNKNOWN;
}
/* Whether these two become one character. */
static int is_pair(u32 first, u32 second) {
    u64 sought = (u64)first << 32 | second;
    u32 low = 0, high = sizeof PAIRS / sizeof *PAIRS;
    while (low < high) {
        u32 middle = (low + high) / 2;
        u64 pair = (u64)PAIRS[middle][0] << 32 | PAIRS[middle][1];
        if (pair == sought) return 1;
        if (pair < sought) low = middle + 1;
        else high = middle;
    }
    return 0;
}
/* It is, if every character stays what it is alone, marks stand in their order, and no character becomes one with the
 * last that is no mark, or with a part of it. What is said to be not normal may still be so. */
static int is_normal(const u8 *p, const u8 *end) {
    u32 base = 0, base_class = 0, last = 0, length;
    for (; p < end; p += length) {
        if (*p < 0x80) {
            while (end - p >= 8 && !(load64(p) & 0x8080808080808080u)) p += 8;
            while (p < end && *p < 0x80) p++;
            base = p[-1];
            base_class = last = length = 0;
            continue;
        }
        u32 code = decode(p, end, &length), class = normal_class(code), order = class & ORDER;
        if (class == UNKNOWN || (order && order < last)) return 0;
        if ((class & COMPOSES) && ((base_class & COMPOSED) || is_pair(base, code))) return 0;
        last = order;
        if (!order) base = code, base_class = class;
    }
    return 1;
}

int64_t sm_not_normal(const uint8_t *data, int64_t n, const int64_t *offsets, int64_t rows, int64_t gap, uint8_t *flags) {
    if ((!data && n) || !offsets || !flags || n < 0 || rows < 0 || gap < 0) return SM_ERROR_ARGUMENT;
    i64 count = 0;
    for (i64 i = 0; i < rows; i++) {
        i64 begin = offsets[i], end = offsets[i + 1] - gap;
        if (begin < 0 || end < begin || end > n) return SM_ERROR_ARGUMENT;
        flags[i] = !is_normal(data + begin, data + end);
        count += flags[i];
    }
    return count;
}
