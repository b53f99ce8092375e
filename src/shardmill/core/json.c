/* One field of JSON Lines: lines that are plainly good are taken, every other line is left to somebody else's verdict. */
#include "core.h"

#include <string.h>

#include "vectors.h"

/* Python's json gives up at about a thousand levels; 64 is what one word holds. */
#define MOST_NESTED 64

typedef struct {
    const uint8_t *data, *end; /* whole lines */
    const uint8_t *names;
    const int64_t *name_ends;
    int64_t depth;
    int32_t simd;
} Block;

typedef struct {
    uint8_t *text;
    int64_t *starts, *offsets;
    uint8_t *verdicts;
    int64_t most;
} Lines;

/* What was seen in strings. */
typedef struct {
    int high;   /* perhaps bytes beyond ASCII */
    int escape; /* a backslash */
} Seen;

/* What a backslash and this byte stand for; 0: nothing. */
static const uint8_t ESCAPED[256] = {['"'] = '"', ['\\'] = '\\', ['/'] = '/',  ['b'] = '\b',
                                     ['f'] = '\f', ['n'] = '\n',  ['r'] = '\r', ['t'] = '\t'};

static int hex4(const uint8_t *p) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = p[i] >= '0' && p[i] <= '9'                  ? p[i] - '0'
                    : (p[i] | 32) >= 'a' && (p[i] | 32) <= 'f' ? (p[i] | 32) - 'a' + 10
                                                                : -1;
        if (digit < 0) return -1; /* before the next byte is looked at: this one may be the newline */
        value = value << 4 | digit;
    }
    return value;
}

/* p stands at a \u. The character is written to *out; null for half of a surrogate pair and for what is no number. */
static const uint8_t *unescape(const uint8_t *p, uint8_t **out) {
    uint8_t *o = *out;
    int c = hex4(p + 2);
    if (c < 0) return NULL;
    p += 6;
    if (c >= 0xD800 && c <= 0xDFFF) {
        if (c > 0xDBFF || p[0] != '\\' || p[1] != 'u') return NULL;
        int second = hex4(p + 2);
        if (second < 0xDC00 || second > 0xDFFF) return NULL;
        p += 6;
        c = 0x10000 + ((c - 0xD800) << 10) + (second - 0xDC00);
        *o++ = (uint8_t)(0xF0 | c >> 18);
        *o++ = (uint8_t)(0x80 | (c >> 12 & 0x3F));
        *o++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        *o++ = (uint8_t)(0x80 | (c & 0x3F));
    } else if (c < 0x80) {
        *o++ = (uint8_t)c;
    } else if (c < 0x800) {
        *o++ = (uint8_t)(0xC0 | c >> 6);
        *o++ = (uint8_t)(0x80 | (c & 0x3F));
    } else {
        *o++ = (uint8_t)(0xE0 | c >> 12);
        *o++ = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        *o++ = (uint8_t)(0x80 | (c & 0x3F));
    }
    *out = o;
    return p;
}

static const uint8_t *skip_space(const uint8_t *p) {
    while (*p == ' ' || *p == '\t' || *p == '\r') p++;
    return p;
}

static const uint8_t *skip_word(const uint8_t *p, const char *word) {
    for (; *word; p++, word++)
        if (*p != (uint8_t)*word) return NULL;
    return p;
}

/* Behind one or more digits, or null. */
static const uint8_t *skip_digits(const uint8_t *p) {
    const uint8_t *first = p;
    while (*p >= '0' && *p <= '9') p++;
    return p == first ? NULL : p;
}

/* Behind a number, true, false or null; or null. Python writes and reads NaN, Infinity and -Infinity too. */
static const uint8_t *skip_scalar(const uint8_t *p) {
    if (*p == 't') return skip_word(p, "true");
    if (*p == 'f') return skip_word(p, "false");
    if (*p == 'n') return skip_word(p, "null");
    if (*p == 'N') return skip_word(p, "NaN");
    if (*p == '-') p++;
    if (*p == 'I') return skip_word(p, "Infinity");
    if (!(p = *p == '0' ? p + 1 : skip_digits(p))) return NULL;
    if (*p == '.' && !(p = skip_digits(p + 1))) return NULL;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        p = skip_digits(p);
    }
    return p;
}

static int is_plain(uint8_t c) { return c >= 0x20 && c != '"' && c != '\\'; }

/* skip_plain and copy_plain return the first byte that is not plain: a quote, a backslash or a control character. There
   is one, since the last byte before `end` is a newline. What is copied never overtakes what is read, and text has as
   much room as the block, so a vector that ends inside the block fits into the text too. */

static const uint8_t *skip_plain_scalar(const uint8_t *p, const uint8_t *end, Seen *seen) {
    (void)end;
    for (; is_plain(*p); p++) seen->high |= *p & 0x80;
    return p;
}

static const uint8_t *copy_plain_scalar(const uint8_t *p, const uint8_t *end, uint8_t **out, Seen *seen) {
    (void)end;
    for (; is_plain(*p); p++) {
        seen->high |= *p & 0x80;
        *(*out)++ = *p;
    }
    return p;
}

#define TARGET
#define WITH(name) name##_scalar
#include "json_lines.h"
#undef WITH
#undef TARGET

#if defined(HAVE_AVX2)
/* A bit for each of 32 bytes that is not plain. */
TARGET_AVX2 static uint32_t stops_avx2(__m256i v) {
    __m256i quotes = _mm256_cmpeq_epi8(v, _mm256_set1_epi8('"'));
    __m256i slashes = _mm256_cmpeq_epi8(v, _mm256_set1_epi8('\\'));
    __m256i controls = _mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(0x1F)), v);
    return (uint32_t)_mm256_movemask_epi8(_mm256_or_si256(_mm256_or_si256(quotes, slashes), controls));
}

TARGET_AVX2 static const uint8_t *skip_plain_avx2(const uint8_t *p, const uint8_t *end, Seen *seen) {
    while (end - p >= 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)p);
        uint32_t stops = stops_avx2(v);
        seen->high |= _mm256_movemask_epi8(v);
        if (stops) return p + __builtin_ctz(stops);
        p += 32;
    }
    return skip_plain_scalar(p, end, seen);
}

TARGET_AVX2 static const uint8_t *copy_plain_avx2(const uint8_t *p, const uint8_t *end, uint8_t **out, Seen *seen) {
    uint8_t *o = *out;
    while (end - p >= 32) {
        __m256i v = _mm256_loadu_si256((const __m256i *)p);
        _mm256_storeu_si256((__m256i *)o, v);
        uint32_t stops = stops_avx2(v);
        seen->high |= _mm256_movemask_epi8(v);
        if (stops) {
            int plain = __builtin_ctz(stops);
            *out = o + plain;
            return p + plain;
        }
        p += 32;
        o += 32;
    }
    *out = o;
    return copy_plain_scalar(p, end, out, seen);
}

#define TARGET TARGET_AVX2
#define WITH(name) name##_avx2
#include "json_lines.h"
#undef WITH
#undef TARGET
#endif

#if defined(HAVE_NEON)
/* Four bits for each of 16 bytes that is not plain. */
static uint64_t stops_neon(uint8x16_t v) {
    uint8x16_t quotes = vceqq_u8(v, vdupq_n_u8('"')), slashes = vceqq_u8(v, vdupq_n_u8('\\'));
    uint8x16_t stops = vorrq_u8(vorrq_u8(quotes, slashes), vcltq_u8(v, vdupq_n_u8(0x20)));
    return vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(stops), 4)), 0);
}

static const uint8_t *skip_plain_neon(const uint8_t *p, const uint8_t *end, Seen *seen) {
    while (end - p >= 16) {
        uint8x16_t v = vld1q_u8(p);
        uint64_t stops = stops_neon(v);
        seen->high |= vmaxvq_u8(v) & 0x80;
        if (stops) return p + (__builtin_ctzll(stops) >> 2);
        p += 16;
    }
    return skip_plain_scalar(p, end, seen);
}

static const uint8_t *copy_plain_neon(const uint8_t *p, const uint8_t *end, uint8_t **out, Seen *seen) {
    uint8_t *o = *out;
    while (end - p >= 16) {
        uint8x16_t v = vld1q_u8(p);
        vst1q_u8(o, v);
        uint64_t stops = stops_neon(v);
        seen->high |= vmaxvq_u8(v) & 0x80;
        if (stops) {
            int plain = __builtin_ctzll(stops) >> 2;
            *out = o + plain;
            return p + plain;
        }
        p += 16;
        o += 16;
    }
    *out = o;
    return copy_plain_scalar(p, end, out, seen);
}

#define TARGET
#define WITH(name) name##_neon
#include "json_lines.h"
#undef WITH
#undef TARGET
#endif

static int64_t take_lines(const Block *block, const Lines *lines) {
#if defined(HAVE_AVX2)
    if (sm_simd(block->simd)) return take_lines_avx2(block, lines);
#elif defined(HAVE_NEON)
    if (sm_simd(block->simd)) return take_lines_neon(block, lines);
#endif
    return take_lines_scalar(block, lines);
}

int64_t sm_json_lines(const uint8_t *data, int64_t n, const uint8_t *names, const int64_t *name_ends, int64_t depth,
                      uint8_t *text, int64_t room, int64_t *starts, int64_t *offsets, uint8_t *verdicts, int64_t most,
                      int32_t simd) {
    if (n < 0 || depth < 1 || most < 0) return SM_ERROR_ARGUMENT;
    if (room < n) return SM_ERROR_SPACE;
    int64_t whole = n;
    while (whole > 0 && data[whole - 1] != '\n') whole--;
    Block block = {data, data + whole, names, name_ends, depth, simd};
    Lines lines = {text, starts, offsets, verdicts, most};
    int64_t count = take_lines(&block, &lines);
    if (count < 0 || whole == n) return count;
    if (count == most) return SM_ERROR_SPACE;
    verdicts[count++] = SM_LINE_LEFT;
    starts[count] = n;
    offsets[count] = offsets[count - 1];
    return count;
}
