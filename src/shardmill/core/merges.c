/* From bytes to ids by merging neighbours, the pair of the lowest rank first and of several the leftmost. */
#include "model.h"

/* ---- pairs */

/* Two ids → the rank of merging them, or NONE: groups of four entries, each with both ids and the rank, and a small table
 * of bits that rules out most other pairs. */
#define PAIR(a, b) ((u64)(a) << 20 | (b))
INLINE u64 pair_hash(u64 pair) { return pair * 0x9E3779B97F4A7C15u; }
#if defined(HAVE_AVX2)
TARGET_AVX2 static inline u32 same_pairs_avx2(const u64 *group, u64 pair) {
    __m256i pairs = _mm256_srli_epi64(_mm256_load_si256((const __m256i *)group), 20);
    return (u32)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(pairs, _mm256_set1_epi64x((i64)pair))));
}
#endif
/* A bit for each entry of a group that has this pair: at most one. */
INLINE u32 same_pairs(const u64 *group, u64 pair) {
    u32 same = 0;
    for (int i = 0; i < 4; i++) same |= (u32)(group[i] >> 20 == pair) << i;
    return same;
}
INLINE u32 pair_rank(const sm_model *m, u32 a, u32 b, int avx2) {
    u64 pair = PAIR(a, b), h = pair_hash(pair);
    u32 bit = (u32)(h >> 8) & m->bit_mask, at = (u32)(h >> m->group_shift);
    u32 possible = m->pair_bits[bit / 32] >> bit % 32 & 1;
    at = possible ? at : m->group_mask + 1; /* a group that is always empty, and in the nearest cache */
    for (;;) {
        const u64 *group = m->pairs + 4 * (size_t)at;
#if defined(HAVE_AVX2)
        u32 same = avx2 ? same_pairs_avx2(group, pair) : same_pairs(group, pair);
#else
        u32 same = same_pairs(group, pair);
        (void)avx2;
#endif
        /* The only branch, and a rare one: a group is filled from the front, and a full one continues in the next. A branch
         * on whether the pair is there could not be predicted. */
        if (LIKELY(!((same == 0) & (group[3] != ~(u64)0)))) {
            u64 none = (u64)(same != 0) - 1;
            return (u32)(group[lowest(same | 8) & 3] | none) & NONE;
        }
        at = (at + 1) & m->group_mask;
    }
}
u32 sm_pair_rank(const sm_model *m, u32 a, u32 b) { return pair_rank(m, a, b, 0); }
void sm_pair_insert(sm_model *m, u32 a, u32 b, u32 rank) {
    u64 pair = PAIR(a, b);
    u64 h = pair_hash(pair);
    u32 bit = (u32)(h >> 8) & m->bit_mask;
    m->pair_bits[bit / 32] |= 1u << bit % 32;
    for (u32 at = (u32)(h >> m->group_shift);; at = (at + 1) & m->group_mask)
        for (int i = 0; i < 4; i++)
            if (m->pairs[4 * (size_t)at + i] == ~(u64)0) {
                m->pairs[4 * (size_t)at + i] = pair << 20 | rank;
                return;
            }
}
INLINE u32 result_of(const sm_model *m, u32 rank) { return m->results ? m->results[rank] : rank; }

/* ---- merging */

/* What merging begins with: bytes, or ids that are merged further. */
typedef struct {
    const u8 *bytes;
    const u32 *ids;
} Start;
INLINE u32 start_id(const sm_model *m, const Start *start, u32 i) {
    return start->ids ? start->ids[i] : m->byte_id[start->bytes[i]];
}
INLINE u32 start_rank(const sm_model *m, const Start *start, u32 i, int avx2) {
    if (start->ids) return pair_rank(m, start->ids[i], start->ids[i + 1], avx2);
    return m->byte_pair[start->bytes[i] << 8 | start->bytes[i + 1]];
}

/* Up to 16 places. A place that was merged into another has no rank, and no bit in `alive`. */
#if defined(HAVE_AVX2)
TARGET_AVX2 static u32 merge_short_avx2(const sm_model *m, const Start *start, u32 n, u32 *ids) {
    u32 id[16];
    _Alignas(32) u32 first[16]; /* the rank, and the place, so that the least is also the leftmost */
    u32 alive = (1u << n) - 1;
    memset(first, 255, sizeof first);
    id[0] = start_id(m, start, 0);
    for (u32 i = 1; i < n; i++) {
        id[i] = start_id(m, start, i);
        first[i - 1] = start_rank(m, start, i - 1, 1) << 4 | (i - 1);
    }
    __m256i low = _mm256_load_si256((const __m256i *)first), high = _mm256_load_si256((const __m256i *)(first + 8));
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), ones = _mm256_set1_epi32(-1);
    const __m256i eight = _mm256_set1_epi32(8);
/* All in registers: to write one place and read all of them back would cost more than the rest. */
#define SET(at, key)                                                                                                         \
    do {                                                                                                                     \
        __m256i place_ = _mm256_set1_epi32((int)(at)), key_ = (key);                                                         \
        low = _mm256_blendv_epi8(low, key_, _mm256_cmpeq_epi32(lanes, place_));                                              \
        high = _mm256_blendv_epi8(high, key_, _mm256_cmpeq_epi32(_mm256_add_epi32(lanes, eight), place_));                   \
    } while (0)
    for (;;) {
        __m256i both = _mm256_min_epu32(low, high);
        __m128i four = _mm_min_epu32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0x4E));
        four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0xB1));
        u32 least = (u32)_mm_cvtsi128_si32(four), at = least & 15, rank = least >> 4;
        if (rank >= NONE) break;
        u32 above = alive & (~1u << at), gone = lowest(above), below = alive & ((1u << at) - 1);
        u32 made = result_of(m, rank), key = ~0u;
        id[at] = made;
        alive &= ~(1u << gone);
        above &= above - 1;
        SET(gone, ones);
        if (above) key = pair_rank(m, made, id[lowest(above)], 1) << 4 | at;
        SET(at, _mm256_set1_epi32((int)key));
        if (below) {
            u32 left = highest(below);
            key = pair_rank(m, id[left], made, 1) << 4 | left;
            SET(left, _mm256_set1_epi32((int)key));
        }
    }
#undef SET
    u32 count = 0;
    for (; alive; alive &= alive - 1) ids[count++] = id[lowest(alive)];
    return count;
}
#endif
static u32 merge_short(const sm_model *m, const Start *start, u32 n, u32 *ids) {
    u32 id[16], key[16]; /* key: the rank, and the place, so that the least is also the leftmost */
    u32 alive = (1u << n) - 1;
    for (u32 i = 0; i < n; i++) id[i] = start_id(m, start, i);
    for (u32 i = 0; i + 1 < n; i++) key[i] = start_rank(m, start, i, 0) << 4 | i;
    key[n - 1] = ~0u;
    for (;;) {
        u32 least = ~0u;
        for (u32 i = 0; i < n; i++) least = key[i] < least ? key[i] : least;
        u32 at = least & 15, rank = least >> 4;
        if (rank >= NONE) break;
        u32 above = alive & (~1u << at), gone = lowest(above);
        id[at] = result_of(m, rank);
        key[gone] = ~0u;
        alive &= ~(1u << gone);
        above &= above - 1;
        key[at] = above ? pair_rank(m, id[at], id[lowest(above)], 0) << 4 | at : ~0u;
        u32 below = alive & ((1u << at) - 1);
        if (below) {
            u32 left = highest(below);
            key[left] = pair_rank(m, id[left], id[at], 0) << 4 | left;
        }
    }
    u32 count = 0;
    for (; alive; alive &= alive - 1) ids[count++] = id[lowest(alive)];
    return count;
}

/* The least rank of a block of 32, and which places of the block have a rank. */
INLINE u32 least_of(const u32 *ranks) {
    u32 least = NONE;
    for (int i = 0; i < 32; i++) least = ranks[i] < least ? ranks[i] : least;
    return least;
}
#if defined(HAVE_AVX2)
TARGET_AVX2 static inline u32 places_avx2(const u32 *ranks, u32 rank) {
    u32 places = 0;
    for (int i = 0; i < 4; i++) {
        __m256i same = _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *)(ranks + 8 * i)), _mm256_set1_epi32((int)rank));
        places |= (u32)_mm256_movemask_ps(_mm256_castsi256_ps(same)) << 8 * i;
    }
    return places;
}
#endif
INLINE u32 places_of(const u32 *ranks, u32 rank) {
    u32 places = 0;
    for (int i = 0; i < 32; i++) places |= (u32)(ranks[i] == rank) << i;
    return places;
}
INLINE void set_rank(Scratch *s, u32 at, u32 rank) {
    u32 block = at / 32, old = s->rank[at];
    s->rank[at] = rank;
    if (rank <= s->least[block]) s->least[block] = rank;
    else if (old == s->least[block]) s->least[block] = least_of(s->rank + block * 32);
}
/* Up to WINDOW places: a linked list, and the least rank of every 32 places. All places of the least rank are merged in one
 * pass from the left, unless a merge creates a pair of a lower rank, which then comes first. */
INLINE u32 merge_window(const sm_model *m, Scratch *s, const Start *start, u32 n, u32 *ids, int avx2) {
    u32 blocks = (n + 31) / 32;
    for (u32 i = 0; i < n; i++) {
        s->id[i] = start_id(m, start, i);
        s->rank[i] = i + 1 < n ? start_rank(m, start, i, avx2) : NONE;
        s->next[i] = (u16)(i + 1);
        s->before[i] = (u16)(i - 1);
    }
    for (u32 i = n; i < blocks * 32; i++) s->rank[i] = NONE;
    for (u32 block = 0; block < blocks; block++) s->least[block] = least_of(s->rank + block * 32);
    for (;;) {
        u32 rank = NONE;
        for (u32 block = 0; block < blocks; block++) rank = s->least[block] < rank ? s->least[block] : rank;
        if (rank == NONE) break;
        u32 result = result_of(m, rank);
        int lower = 0;
        for (u32 block = 0; block < blocks && !lower; block++) {
            if (s->least[block] != rank) continue;
#if defined(HAVE_AVX2)
            u32 places = avx2 ? places_avx2(s->rank + block * 32, rank) : places_of(s->rank + block * 32, rank);
#else
            u32 places = places_of(s->rank + block * 32, rank);
#endif
            for (; places && !lower; places &= places - 1) {
                u32 at = block * 32 + lowest(places), made = NONE;
                if (s->rank[at] != rank) continue; /* merged away by the one before */
                u32 gone = s->next[at], next = s->next[gone];
                s->id[at] = result;
                s->next[at] = (u16)next;
                set_rank(s, gone, NONE);
                if (next < n) {
                    s->before[next] = (u16)at;
                    made = pair_rank(m, result, s->id[next], avx2);
                }
                set_rank(s, at, made);
                lower = made < rank;
                if (at) {
                    u32 left = s->before[at];
                    made = pair_rank(m, s->id[left], result, avx2);
                    set_rank(s, left, made);
                    lower |= made < rank;
                }
            }
        }
    }
    u32 count = 0;
    for (u32 i = 0; i < n; i = s->next[i]) ids[count++] = s->id[i];
    return count;
}
#if defined(HAVE_AVX2)
TARGET_AVX2 static u32 merge_window_avx2(const sm_model *m, Scratch *s, const Start *start, u32 n, u32 *ids) {
    return merge_window(m, s, start, n, ids, 1);
}
#endif
static u32 merge(const sm_model *m, Scratch *s, int simd, Start start, u32 n, u32 *ids) {
    if (!n) return 0;
#if defined(HAVE_AVX2)
    if (simd) return n <= 16 ? merge_short_avx2(m, &start, n, ids) : merge_window_avx2(m, s, &start, n, ids);
#else
    (void)simd;
#endif
    return n <= 16 ? merge_short(m, &start, n, ids) : merge_window(m, s, &start, n, ids, 0);
}
u32 sm_merge(const sm_model *m, Scratch *s, int simd, const u8 *p, u32 n, u32 *ids) {
    return merge(m, s, simd, (Start){p, NULL}, n, ids);
}
u32 sm_merge_ids(const sm_model *m, Scratch *s, int simd, u32 n, u32 *ids) {
    return merge(m, s, simd, (Start){NULL, ids}, n, ids);
}
