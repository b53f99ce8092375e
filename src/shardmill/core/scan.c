/* Passes over text: how often a byte occurs, where separators stand, what text seldom holds, and the hash that decides a
 * document's split. */
#include "core.h"

#include <string.h>

#include "vectors.h"

#if defined(HAVE_AVX2)
/* Counts in blocks of 32 bytes and returns how many bytes it has looked at. */
TARGET_AVX2 static int64_t count_avx2(const uint8_t *data, int64_t n, uint8_t byte, int64_t *count) {
    const __m256i sought = _mm256_set1_epi8((char)byte), zero = _mm256_setzero_si256();
    __m256i total = zero;
    int64_t i = 0;
    while (n - i >= 32) {
        __m256i some = zero; /* a byte for each place: full after 255 blocks */
        for (int block = 0; block < 255 && n - i >= 32; block++, i += 32)
            some = _mm256_sub_epi8(some, _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(data + i)), sought));
        total = _mm256_add_epi64(total, _mm256_sad_epu8(some, zero));
    }
    int64_t sums[4];
    memcpy(sums, &total, sizeof sums);
    *count += sums[0] + sums[1] + sums[2] + sums[3];
    return i;
}

/* A bit for each of the 32 places from p on at which the first and the last byte of the separator fit. */
TARGET_AVX2 static uint32_t hits_avx2(const uint8_t *p, const uint8_t *separator, int64_t width) {
    __m256i first = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)p), _mm256_set1_epi8((char)separator[0]));
    __m256i last = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(p + width - 1)),
                                     _mm256_set1_epi8((char)separator[width - 1]));
    return (uint32_t)_mm256_movemask_epi8(_mm256_and_si256(first, last));
}
#endif

int64_t sm_count(const uint8_t *data, int64_t n, uint8_t byte, int32_t simd) {
    int64_t i = 0, count = 0;
#if defined(HAVE_AVX2)
    if (sm_simd(simd)) i = count_avx2(data, n, byte, &count);
#endif
    (void)simd;
    for (; i < n; i++) count += data[i] == byte; /* compilers make vectors of this, where the machine surely has them */
    return count;
}

typedef struct {
    const uint8_t *data, *separator;
    int64_t n, width, most;
    int64_t *places;
    int64_t next;  /* the first place that is not inside the last separator */
    int64_t found;
} Search;

static inline void look_at(Search *s, int64_t at) {
    if (at < s->next || memcmp(s->data + at, s->separator, (size_t)s->width) != 0) return;
    if (s->found < s->most) s->places[s->found] = at;
    s->found++;
    s->next = at + s->width;
}

static int64_t find_scalar(Search *s, int64_t at) {
    while (s->n - at >= s->width) {
        const uint8_t *first = memchr(s->data + at, s->separator[0], (size_t)(s->n - s->width + 1 - at));
        if (!first) break;
        at = first - s->data;
        look_at(s, at);
        at = s->next > at ? s->next : at + 1;
    }
    return s->found;
}

#if defined(HAVE_AVX2)
TARGET_AVX2 static int64_t find_avx2(Search *s) {
    int64_t at = 0;
    for (; s->n - at >= s->width + 31; at += 32)
        for (uint32_t hits = hits_avx2(s->data + at, s->separator, s->width); hits; hits &= hits - 1)
            look_at(s, at + __builtin_ctz(hits));
    return find_scalar(s, at);
}
#endif

int64_t sm_find(const uint8_t *data, int64_t n, const uint8_t *separator, int64_t width, int64_t *places, int64_t most,
                int32_t simd) {
    if (width < 1) return 0;
    Search search = {data, separator, n, width, most, places, 0, 0};
#if defined(HAVE_AVX2)
    if (sm_simd(simd)) return find_avx2(&search);
#endif
    (void)simd;
    return find_scalar(&search, 0);
}

/* Bytes that may be odd, by a bit for each high nibble that has any: 00-08, 0b, 0e, 0f; 10-1a, 1e; '<'; 7f. */
static const uint8_t LOW_NIBBLE[16] = {3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 1, 4, 0, 3, 9};
static const uint8_t HIGH_NIBBLE[16] = {1, 2, 0, 4, 0, 0, 0, 8};

/* The special tokens, and how many bytes of each stand before the first place where text may be cut. */
static const struct {
    const char *text;
    int64_t width, uncut;
} TOKENS[] = {{"<|endoftext|>", 13, 11}, {"<|end_of_text|>", 15, 5}, {"<|im_end|>", 10, 4}, {"</s>", 4, 3}};

typedef struct {
    const uint8_t *data;
    const int64_t *offsets, *ends;
    int64_t n, rows, gap, groups;
    int64_t *counts;
    int64_t row, group; /* of the last hit */
    int64_t found;
} Odd;

static void judge_odd(Odd *o, int64_t at) {
    const uint8_t *p = o->data + at;
    if (*p == '<' && (at + 1 >= o->n || (p[1] != '|' && p[1] != '/'))) return;
    while (o->row < o->rows && o->offsets[o->row + 1] <= at) o->row++;
    if (o->row >= o->rows) return;
    int64_t stop = o->offsets[o->row + 1] - o->gap, kind = *p == 0x1e ? SM_RECORD_SEPARATOR : SM_CONTROL;
    if (stop > o->n) stop = o->n;
    if (at >= stop) return; /* in the gap */
    if (*p == '<') {
        int64_t left = stop - at, i = 0;
        for (; i < 4; i++) {
            int64_t width = TOKENS[i].width < left ? TOKENS[i].width : left;
            if (width >= TOKENS[i].uncut && memcmp(p, TOKENS[i].text, (size_t)width) == 0) break;
        }
        if (i == 4) return;
        kind = SM_ENDOFTEXT + i;
    }
    while (o->group < o->groups && o->ends[o->group] <= o->row) o->group++;
    if (o->group >= o->groups) return;
    o->counts[SM_ODD_KINDS * o->group + kind]++;
    o->found++;
}

#if defined(HAVE_AVX2)
TARGET_AVX2 static inline __m256i odd_classes(const uint8_t *p, __m256i low, __m256i high) {
    const __m256i nibble = _mm256_set1_epi8(15), bytes = _mm256_loadu_si256((const __m256i *)p);
    __m256i above = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
    /* A byte of more than 127 gives no class by its low nibble, and it has none. */
    return _mm256_and_si256(_mm256_shuffle_epi8(low, bytes), _mm256_shuffle_epi8(high, above));
}

TARGET_AVX2 static inline uint32_t odd_hits(__m256i classes) {
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(classes, _mm256_setzero_si256()));
}

TARGET_AVX2 static int64_t odd_avx2(Odd *o, int64_t at, int64_t end) {
    const __m256i low = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)LOW_NIBBLE));
    const __m256i high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)HIGH_NIBBLE));
    for (; end - at >= 128; at += 128) {
        __m256i found[4], any = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) any = _mm256_or_si256(any, found[i] = odd_classes(o->data + at + 32 * i, low, high));
        if (_mm256_testz_si256(any, any)) continue;
        for (int i = 0; i < 4; i++)
            for (uint32_t hits = odd_hits(found[i]); hits; hits &= hits - 1)
                judge_odd(o, at + 32 * i + __builtin_ctz(hits));
    }
    return at;
}
#endif

int64_t sm_odd(const uint8_t *data, int64_t n, const int64_t *offsets, int64_t rows, int64_t gap, const int64_t *ends,
               int64_t groups, int64_t *counts, int32_t simd) {
    if (n < 0 || rows < 0 || gap < 0 || groups < 0) return SM_ERROR_ARGUMENT;
    Odd odd = {data, offsets, ends, n, rows, gap, groups, counts, 0, 0, 0};
    int64_t at = rows ? offsets[0] : 0, end = rows ? offsets[rows] : 0;
    if (at < 0 || end < at) return SM_ERROR_ARGUMENT;
    if (end > n) end = n; /* after the last row there need be no gap */
#if defined(HAVE_AVX2)
    if (sm_simd(simd)) at = odd_avx2(&odd, at, end);
#endif
    (void)simd;
    for (; at < end; at++)
        if (LOW_NIBBLE[data[at] & 15] & HIGH_NIBBLE[data[at] >> 4]) judge_odd(&odd, at);
    return odd.found;
}

#define PREFIX 65536
#define PRIME 0x9E3779B97F4A7C15u
#define FACTOR 0xD1342543DE82EF95u

static uint64_t stir(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * PRIME;
    hash = (hash ^ hash >> 29) * PRIME;
    return hash ^ hash >> 32;
}

static uint64_t little_endian(const uint8_t *p, int64_t n) {
    uint64_t word = 0;
    for (int64_t i = 0; i < n; i++) word |= (uint64_t)p[i] << (8 * i);
    return word;
}

static uint64_t hash_row(const uint8_t *row, int64_t length, uint64_t seed) {
    if (length > PREFIX) length = PREFIX;
    uint64_t hash = stir(seed, (uint64_t)length), sum = 0, factor = FACTOR;
    if (length < 8) return stir(stir(hash, little_endian(row, length)), 0);
    int64_t words = length <= 64 ? 8 : 16;
    for (int64_t i = 0; i < words; i++, factor *= FACTOR)
        sum += little_endian(row + (length - 8) * i / (words - 1), 8) * factor;
    return stir(stir(hash, sum), 0);
}

int32_t sm_content_hash(const uint8_t *data, int64_t n, const int64_t *offsets, int64_t rows, int64_t gap,
                        uint64_t seed, uint64_t *hashes) {
    if (gap < 0) return SM_ERROR_ARGUMENT; /* it may be longer than the data: after the last row there need be none */
    for (int64_t i = 0; i < rows; i++) {
        if (offsets[i + 1] < 0) return SM_ERROR_ARGUMENT;
        int64_t start = offsets[i], stop = offsets[i + 1] - gap;
        if (start < 0 || stop < start || stop > n) return SM_ERROR_ARGUMENT;
        hashes[i] = hash_row(data + start, stop - start, seed);
    }
    return 0;
}
