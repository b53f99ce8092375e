/* Passes over text: how often a byte occurs, where separators stand, and the hash that decides a document's split. */
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
