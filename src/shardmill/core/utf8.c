/* Whether bytes are UTF-8. */
#include "core.h"

#include <string.h>

#include "vectors.h"

/* The bytes of the character at p, or 0 if it is not whole or not valid. */
static int character(const uint8_t *p, const uint8_t *end) {
    uint8_t first = p[0];
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0; /* from the middle, a form that is too long, or beyond U+10FFFF */
    int width = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    uint8_t low = 0x80, high = 0xBF; /* bounds of the second byte */
    if (first == 0xE0) low = 0xA0;   /* shorter forms exist */
    if (first == 0xED) high = 0x9F;  /* surrogates */
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    if (end - p < width || p[1] < low || p[1] > high) return 0;
    for (int i = 2; i < width; i++)
        if (p[i] < 0x80 || p[i] > 0xBF) return 0;
    return width;
}

/* Where ASCII ends: the first other byte, or the end. */
static const uint8_t *skip_ascii(const uint8_t *p, const uint8_t *end) {
    for (uint64_t word; end - p >= 8; p += 8) {
        memcpy(&word, p, 8);
        if (word & 0x8080808080808080u) break;
    }
    while (p < end && *p < 0x80) p++;
    return p;
}

static int valid_scalar(const uint8_t *p, const uint8_t *end) {
    while ((p = skip_ascii(p, end)) < end) {
        int width = character(p, end);
        if (!width) return 0;
        p += width;
    }
    return 1;
}

#if defined(HAVE_AVX2) || defined(HAVE_NEON)
/* Three tables judge each pair of neighbouring bytes: by the first's high half, its low half, and the second's high
   half. A bit that is set in all three is an error, except TWO_AFTER, which says that the pair is right exactly where a
   third or fourth byte has to stand. After J. Keiser and D. Lemire, "Validating UTF-8 in less than one instruction
   per byte" (2020). */
enum {
    TOO_SHORT = 1 << 0,  /* a lead byte without its second byte */
    TOO_LONG = 1 << 1,   /* ASCII, then a byte from the middle */
    LONG_3 = 1 << 2,     /* E0 80..9F: a shorter form exists */
    SURROGATE = 1 << 4,  /* ED A0..BF */
    LONG_2 = 1 << 5,     /* C0 or C1 */
    LARGE = 1 << 3,      /* F4 90..BF, F5 and above with 90..BF */
    LARGE_LONG_4 = 1 << 6, /* F0 80..8F; F5 and above with 80..8F */
    TWO_AFTER = 1 << 7,  /* two bytes from the middle in a row */
};
#define MIDDLES (TOO_SHORT | TOO_LONG | TWO_AFTER)
/* clang-format off */
static const uint8_t FIRST_HIGH[16] = {
    TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, TOO_LONG, /* 0x: ASCII */
    TWO_AFTER, TWO_AFTER, TWO_AFTER, TWO_AFTER,                                     /* 8x..Bx: from the middle */
    TOO_SHORT | LONG_2,                                                             /* Cx */
    TOO_SHORT,                                                                      /* Dx */
    TOO_SHORT | LONG_3 | SURROGATE,                                                 /* Ex */
    TOO_SHORT | LARGE | LARGE_LONG_4,                                               /* Fx */
};
static const uint8_t FIRST_LOW[16] = {
    MIDDLES | LONG_3 | LONG_2 | LARGE_LONG_4,       /* x0 */
    MIDDLES | LONG_2,                               /* x1 */
    MIDDLES, MIDDLES,                               /* x2, x3 */
    MIDDLES | LARGE,                                /* x4 */
    MIDDLES | LARGE | LARGE_LONG_4, MIDDLES | LARGE | LARGE_LONG_4, MIDDLES | LARGE | LARGE_LONG_4,
    MIDDLES | LARGE | LARGE_LONG_4, MIDDLES | LARGE | LARGE_LONG_4, MIDDLES | LARGE | LARGE_LONG_4,
    MIDDLES | LARGE | LARGE_LONG_4, MIDDLES | LARGE | LARGE_LONG_4,
    MIDDLES | LARGE | LARGE_LONG_4 | SURROGATE,     /* xD */
    MIDDLES | LARGE | LARGE_LONG_4, MIDDLES | LARGE | LARGE_LONG_4,
};
static const uint8_t SECOND_HIGH[16] = {
    TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT,
    TOO_LONG | LONG_2 | TWO_AFTER | LONG_3 | LARGE_LONG_4, /* 8x */
    TOO_LONG | LONG_2 | TWO_AFTER | LONG_3 | LARGE,        /* 9x */
    TOO_LONG | LONG_2 | TWO_AFTER | SURROGATE | LARGE,     /* Ax */
    TOO_LONG | LONG_2 | TWO_AFTER | SURROGATE | LARGE,     /* Bx */
    TOO_SHORT, TOO_SHORT, TOO_SHORT, TOO_SHORT,            /* Cx..Fx */
};
/* clang-format on */

/* The last character that begins before p, at most three bytes back: where a vector may leave off in the middle. */
static const uint8_t *character_start(const uint8_t *from, const uint8_t *p) {
    for (int back = 1; back <= 3 && p - from >= back; back++)
        if (p[-back] >= 0xC0) return p - back;
    return p;
}
#endif

#if defined(HAVE_AVX2)
TARGET_AVX2 static __m256i before(__m256i now, __m256i earlier, int bytes) {
    __m256i joined = _mm256_permute2x128_si256(earlier, now, 0x21);
    return bytes == 1 ? _mm256_alignr_epi8(now, joined, 15)
         : bytes == 2 ? _mm256_alignr_epi8(now, joined, 14)
                      : _mm256_alignr_epi8(now, joined, 13);
}

TARGET_AVX2 static __m256i look_up(const uint8_t *table, __m256i halves) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), halves);
}

TARGET_AVX2 static int valid_avx2(const uint8_t *begin, const uint8_t *end) {
    const uint8_t *p = begin;
    const __m256i low = _mm256_set1_epi8(0x0F);
    __m256i earlier = _mm256_setzero_si256(), wrong = _mm256_setzero_si256();
    int ascii = 1; /* the 32 bytes before were */
    for (; end - p >= 32; p += 32) {
        __m256i now = _mm256_loadu_si256((const __m256i *)p);
        if (_mm256_movemask_epi8(now) == 0 && ascii) {
            earlier = now;
            continue;
        }
        ascii = _mm256_movemask_epi8(now) == 0;
        __m256i one = before(now, earlier, 1), two = before(now, earlier, 2), three = before(now, earlier, 3);
        __m256i pairs = _mm256_and_si256(
            look_up(FIRST_HIGH, _mm256_and_si256(_mm256_srli_epi16(one, 4), low)),
            _mm256_and_si256(look_up(FIRST_LOW, _mm256_and_si256(one, low)),
                             look_up(SECOND_HIGH, _mm256_and_si256(_mm256_srli_epi16(now, 4), low))));
        /* Bit 7 where the byte two before opens three, or the byte three before opens four. */
        __m256i third = _mm256_subs_epu8(two, _mm256_set1_epi8((char)(0xE0 - 0x80)));
        __m256i fourth = _mm256_subs_epu8(three, _mm256_set1_epi8((char)(0xF0 - 0x80)));
        __m256i due = _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8((char)0x80));
        wrong = _mm256_or_si256(wrong, _mm256_xor_si256(due, pairs));
        earlier = now;
    }
    if (!_mm256_testz_si256(wrong, wrong)) return 0;
    return valid_scalar(character_start(begin, p), end);
}
#endif

#if defined(HAVE_NEON)
static int valid_neon(const uint8_t *begin, const uint8_t *end) {
    const uint8_t *p = begin;
    uint8x16_t earlier = vdupq_n_u8(0), wrong = vdupq_n_u8(0);
    int ascii = 1;
    for (; end - p >= 16; p += 16) {
        uint8x16_t now = vld1q_u8(p);
        int plain = vmaxvq_u8(now) < 0x80;
        if (!plain || !ascii) {
            uint8x16_t one = vextq_u8(earlier, now, 15), two = vextq_u8(earlier, now, 14);
            uint8x16_t three = vextq_u8(earlier, now, 13);
            uint8x16_t pairs = vandq_u8(vqtbl1q_u8(vld1q_u8(FIRST_HIGH), vshrq_n_u8(one, 4)),
                                        vandq_u8(vqtbl1q_u8(vld1q_u8(FIRST_LOW), vandq_u8(one, vdupq_n_u8(0x0F))),
                                                 vqtbl1q_u8(vld1q_u8(SECOND_HIGH), vshrq_n_u8(now, 4))));
            uint8x16_t due = vorrq_u8(vqsubq_u8(two, vdupq_n_u8(0xE0 - 0x80)), vqsubq_u8(three, vdupq_n_u8(0xF0 - 0x80)));
            wrong = vorrq_u8(wrong, veorq_u8(vandq_u8(due, vdupq_n_u8(0x80)), pairs));
        }
        ascii = plain;
        earlier = now;
    }
    if (vmaxvq_u8(wrong)) return 0;
    return valid_scalar(character_start(begin, p), end);
}
#endif

int32_t sm_utf8_valid(const uint8_t *data, int64_t n, int32_t simd) {
    const uint8_t *end = data + n;
#if defined(HAVE_AVX2)
    if (n >= 32 && sm_simd(simd)) return valid_avx2(data, end);
#elif defined(HAVE_NEON)
    if (n >= 16 && sm_simd(simd)) return valid_neon(data, end);
#endif
    (void)simd;
    return valid_scalar(data, end);
}
