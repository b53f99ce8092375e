/* What model.c, pieces.c, merges.c and encode.c share. Not part of the interface. */
#ifndef SHARDMILL_MODEL_H
#define SHARDMILL_MODEL_H

#include <string.h>

#include "core.h"
#include "vectors.h"

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#if defined(GNU)
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define PREFETCH(p) __builtin_prefetch(p)
#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline)) /* what is rare: it would take registers from what is not */
#else
#define LIKELY(x) (x)
#define PREFETCH(p) ((void)(p))
#define INLINE static inline
#define APART static
#endif

/* The number of the lowest and of the highest bit; x is not 0. */
INLINE u32 lowest(u32 x) {
#if defined(GNU)
    return (u32)__builtin_ctz(x);
#else
    u32 at = 0;
    for (; !(x & 1); x >>= 1) at++;
    return at;
#endif
}
INLINE u32 highest(u32 x) {
#if defined(GNU)
    return 31 - (u32)__builtin_clz(x);
#else
    u32 at = 0;
    for (; x >>= 1;) at++;
    return at;
#endif
}

enum { UPPER = 1, LOWER = 2, EITHER = 4, MARK = 8, NUMBER = 16, WHITE = 32, NEWLINE = 64, PUNCTUATION = 128 };
enum { LETTER = UPPER | LOWER | EITHER }; /* PUNCTUATION: symbols too */

enum {
    NONE = 0xFFFFF,      /* no rank and no id; both have 20 bits */
    LONGEST = 512,       /* bytes of a token, at most */
    WINDOW = 4096        /* bytes that are merged at once, at most; more is stitched together */
};

/* The ids of a character taken alone; and whether a token may go on from it, or come into it: see crossing_flags(). */
typedef struct {
    u32 ids[3];
    u16 count, flags;
} OneChar;

/* Immutable after sm_model_build, and shared by all threads. Everything lies in one buffer of the caller. */
struct sm_model {
    int scheme, whole_first;
    u32 count;           /* ids */
    u32 longest;         /* bytes of the longest token */
    int in_order;        /* a token's parts are made by merges of a lower rank, so ranks come in ascending order */
    u64 whole_lengths[LONGEST / 64 + 1]; /* bit n: some token of n bytes is found only when it is a whole piece */
    const u8 *text;      /* the bytes of all tokens */
    const u32 *begin;    /* where those of each begin; count + 1 */
    u32 *vocabulary;     /* hash table: bytes → id, of tokens that a piece of these bytes becomes */
    u32 vocabulary_mask;
    u32 *results;        /* rank → the id that the merge makes; NULL: the rank is the id */
    u64 *pairs;          /* hash table in groups of four: two ids → rank; and an empty group behind it */
    u32 group_shift, group_mask;
    u32 *pair_bits;      /* a bit of every hash that occurs */
    u32 bit_mask;
    u32 byte_id[256];
    u32 *byte_pair;      /* two bytes → rank */
    OneChar *chars;      /* every character below U+10000 */
    u8 *neighbours;      /* a bit for each two bytes that stand beside each other in some token */
    u32 *crossings;      /* hash set of the pairs of forms at a border inside of some token */
    u32 crossing_mask;
};

typedef struct {
    u32 id[WINDOW], rank[WINDOW], least[WINDOW / 32];
    u16 next[WINDOW], before[WINDOW];
} Scratch;

/* ---- reading bytes */

/* Up to eight bytes, the first one lowest. */
INLINE u64 load_some(const u8 *p, u32 n) {
    u64 v = 0;
    for (u32 i = 0; i < n; i++) v |= (u64)p[i] << 8 * i;
    return v;
}
INLINE u64 load64(const u8 *p) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    u64 v;
    memcpy(&v, p, 8);
    return v;
#else
    return load_some(p, 8);
#endif
}
INLINE u32 char_length(u8 lead) { return lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

/* The character at p, and its length. Where that is not UTF-8 the byte counts alone, with a number beyond all characters:
 * text should be valid, but what is not must not lead to other ids for what is. */
enum { BROKEN = 0x110000 };
INLINE u32 decode(const u8 *p, const u8 *end, u32 *length) {
    u32 n = char_length(*p), code;
    *length = 1;
    if (*p < 0x80) return *p;
    if ((i64)n > end - p || n == 1 || (p[1] & 0xC0) != 0x80) return BROKEN + *p;
    if (n == 2) {
        code = (p[0] & 31u) << 6 | (p[1] & 63u);
        if (code < 0x80) return BROKEN + *p;
    } else if ((p[2] & 0xC0) != 0x80) {
        return BROKEN + *p;
    } else if (n == 3) {
        code = (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
        if (code < 0x800) return BROKEN + *p;
    } else {
        code = (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
        if ((p[3] & 0xC0) != 0x80 || p[0] > 0xF4 || code < 0x10000 || code >= BROKEN) return BROKEN + *p;
    }
    *length = n;
    return code;
}

INLINE u32 length_of(const sm_model *m, u32 id) { return m->begin[id + 1] - m->begin[id]; }
/* Whether a token may cover the border between these bytes. */
INLINE int are_neighbours(const sm_model *m, u8 a, u8 b) { return m->neighbours[a << 5 | b >> 3] >> (b & 7) & 1; }

/* ---- pieces.c */
u32 sm_class(u32 code);
/* Fills starts with where pieces begin, relative to text, from the piece that begins at *at; stops after about
 * `room` of them or at the end of the text. Then *at is where the next piece begins. `limit`: end of what may be read. */
u32 sm_split(int scheme, int simd, const u8 *text, u32 size, const u8 *limit, u32 *at, u32 *starts, u32 room);
/* A text whose end is not known yet. A state says where in a piece a text begins: at its start; where the rest of the piece ends as
 * a piece that begins here would; among other characters; among the line ends (or slashes) after them; after a small letter,
 * where case counts; among ASCII letters after punctuation. */
enum { AT_START, IN_RUN, IN_OTHER, IN_LINES, IN_SMALL, IN_ASCII, STATES };
/* Pieces that end here or before end there whatever follows the text. */
const u8 *sm_certain_end(const u8 *text, const u8 *end);
/* The end of the piece in which the text begins in this state. */
const u8 *sm_piece_rest(int scheme, int state, const u8 *p, const u8 *end);
/* Up to where the text from p on certainly is one piece, whatever follows; *ends: and where this piece ends. */
const u8 *sm_open_end(int scheme, int state, const u8 *p, const u8 *end, int follows, int *ends);
/* The state at a character inside of the piece, far behind its first two. */
int sm_state_after(int scheme, int state, const u8 *p, const u8 *at);
enum { SPLIT_SLACK = 72 }; /* starts has so many places beyond room: a block, and eight at a time */

/* ---- model.c */
/* The id of the token that a piece of these bytes is, or NONE. */
u32 sm_token(const sm_model *m, const u8 *p, u32 n);
enum { CROSSED = 1, IN_PARTS = 2 };
int sm_crosses(const sm_model *m, const u8 *a, u32 la, const u8 *b, u32 lb, int parts);

/* ---- merges.c */
/* The ids of n ≤ WINDOW bytes by merging alone, never looked up whole; returns how many. */
u32 sm_merge(const sm_model *m, Scratch *s, int simd, const u8 *p, u32 n, u32 *ids);
/* The same of ids that are merged further, in place. */
u32 sm_merge_ids(const sm_model *m, Scratch *s, int simd, u32 n, u32 *ids);
u32 sm_pair_rank(const sm_model *m, u32 a, u32 b);
void sm_pair_insert(sm_model *m, u32 a, u32 b, u32 rank);

#endif
