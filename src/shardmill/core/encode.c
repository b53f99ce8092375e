/* Encodes rows of text, through a cache of pieces.
 *
 * The cache has a fixed size. A slot holds a piece of up to 15 bytes and its ids as they are written out, if they take no
 * more than 12 bytes. Two slots are a set, which shares a line of the processor's cache. Pieces that are tokens are put
 * there first and are never evicted. A second, smaller table holds longer pieces, and those with more ids.
 */
#include "model.h"

enum {
    BATCH = 192,             /* pieces that are split, then looked up; more would push each other's slots out of the cache */
    SHORT_PIECE = 15,        /* bytes of a piece in a slot, at most */
    LONG_PIECE = 31,         /* and in a long slot */
    SLOT_ID_BYTES = 12,      /* room for ids in a slot */
    LONG_SLOT_ID_BYTES = 28, /* and in a long slot */
    FIRST_WINDOW = 512,      /* bytes of a window at first; WINDOW at most */
    MEMO_SIZE = 1 << 14
};

typedef struct {
    u64 key[2]; /* the bytes, and in the last byte their number; 128 more for a part of a piece */
    u8 ids[SLOT_ID_BYTES];
    u16 count, kept; /* kept: it is never evicted */
} Slot;
typedef struct {
    u64 key[4];
    u8 ids[LONG_SLOT_ID_BYTES];
    u32 count;
} LongSlot;

typedef u8 *Put(sm_encoder *e, const u8 *text, u32 count, const u8 *limit, u8 *out);

struct sm_encoder {
    const sm_model *model;
    Put *put;
    Slot *slots;
    LongSlot *longs;
    u32 shift, long_shift; /* a hash of 64 bits is shifted by this to get an index into either table */
    int simd, wide, error;
    u64 memo[MEMO_SIZE]; /* whether a token may cover the border between two characters */
    u64 keys[BATCH + SPLIT_SLACK][2];
    u32 places[BATCH + SPLIT_SLACK], starts[BATCH + SPLIT_SLACK + 1];
    const u8 *last; /* what was merged last for put_windows(), of the text that is being encoded */
    u32 last_bytes, last_count;
    u32 ids[2][WINDOW], last_ids[WINDOW];
    Scratch scratch;
};

/* ---- writing ids: every function returns where the next id goes */

INLINE u8 *forward(u8 *out, int wide, u32 count) { return out + ((size_t)count << (1 + wide)); }
INLINE u8 *put(u8 *out, int wide, u32 id) {
    if (wide) {
        memcpy(out, &id, 4);
    } else {
        u16 narrow = (u16)id;
        memcpy(out, &narrow, 2);
    }
    return forward(out, wide, 1);
}
static u8 *put_all(u8 *out, int wide, const u32 *ids, u32 count) {
    for (u32 i = 0; i < count; i++) out = put(out, wide, ids[i]);
    return out;
}
/* All of it is copied whatever the number of ids: SM_ROOM allows for that. */
INLINE u8 *put_slot(u8 *out, int wide, const Slot *slot) {
    memcpy(out, (const u8 *)slot + offsetof(Slot, ids), sizeof(Slot) - offsetof(Slot, ids));
    return forward(out, wide, slot->count);
}

/* ---- the cache */

INLINE u64 hash_key(u64 low, u64 high) { return low * 0x9E3779B97F4A7C15u + high * 0xD6E8FEB86659FD93u; }
/* The first of the two slots where a piece may be. The number of sets is a power of two. */
INLINE u32 set_of(u32 shift, const u64 *key) { return (u32)(hash_key(key[0], key[1]) >> shift) * 2; }
/* Which of the 16 bytes at the beginning of a piece belong to it, by its length. No slot has a key for more than 15. */
#define ONES(n) ((n) >= 8 ? ~(u64)0 : ((u64)1 << 8 * ((n) & 7)) - 1)
#define KEY_MASK(n) {ONES(n), (n) > 8 ? ONES((n) - 8) : 0, (u64)(n) << 56, 0}
#define FOUR_KEY_MASKS(n) KEY_MASK(n), KEY_MASK((n) + 1), KEY_MASK((n) + 2), KEY_MASK((n) + 3)
static const u64 KEY_MASKS[17][4] = {FOUR_KEY_MASKS(0), FOUR_KEY_MASKS(4), FOUR_KEY_MASKS(8), FOUR_KEY_MASKS(12),
                                     {0, 0, (u64)255 << 56, 0}};

INLINE void make_key_of(u64 low, u64 high, u32 n, u64 *key) {
    const u64 *part = KEY_MASKS[n < 16 ? n : 16];
    key[0] = low & part[0];
    key[1] = (high & part[1]) | part[2];
}
INLINE void make_key(const u8 *p, u32 n, const u8 *limit, u64 *key) {
    i64 have = limit - p;
    if (have >= 16) make_key_of(load64(p), load64(p + 8), n, key);
    else make_key_of(load_some(p, have < 8 ? (u32)have : 8), have > 8 ? load_some(p + 8, (u32)have - 8) : 0, n, key);
}
/* Whether one of the two slots of a set has the key, and in *at which one. Without a branch, since none could be predicted. */
INLINE int look_up(const Slot *set, const u64 *key, size_t *at) {
#if defined(HAVE_AVX2) /* every such processor has SSE2 */
    __m128i k = _mm_loadu_si128((const __m128i *)key);
    u32 first = (u32)_mm_movemask_epi8(_mm_cmpeq_epi8(k, _mm_load_si128((const __m128i *)set[0].key))) + 1;
    u32 second = (u32)_mm_movemask_epi8(_mm_cmpeq_epi8(k, _mm_load_si128((const __m128i *)set[1].key))) + 1;
    *at = second >> 16;
    return (int)((first | second) >> 16);
#else
    u64 first = (set[0].key[0] ^ key[0]) | (set[0].key[1] ^ key[1]);
    u64 second = (set[1].key[0] ^ key[0]) | (set[1].key[1] ^ key[1]);
    *at = second == 0;
    return (first < second ? first : second) == 0;
#endif
}
static void keep(Slot *set, const u64 *key, const u8 *ids, u32 count, int wide, u16 kept) {
    if (set[1].kept) return;
    /* Kept slots come first; of two others the older one is evicted. */
    u16 at = set[0].kept;
    if (!at) set[1] = set[0];
    set[at] = (Slot){{key[0], key[1]}, {0}, (u16)count, kept};
    memcpy(set[at].ids, ids, (size_t)count << (1 + wide));
}

/* ---- a piece that is not in the cache */

/* Puts the ids of n bytes into e->ids[which]; if they are those that were merged last, as in a run of one letter, by copying. */
static u32 merge_again(sm_encoder *e, const u8 *p, u32 n, int which) {
    if (n != e->last_bytes || memcmp(p, e->last, n)) {
        e->last_bytes = n;
        e->last = p;
        e->last_count = sm_merge(e->model, &e->scratch, e->simd, p, n, e->last_ids);
    }
    memcpy(e->ids[which], e->last_ids, e->last_count * sizeof(u32));
    return e->last_count;
}
/* Encodes a long run of bytes in windows of `span` bytes. A token that two windows share is one of the whole text
 * (docs/dev/core.md), so from there on the second one counts. Returns 0 if two windows cannot be joined, after *done bytes.
 * open: more bytes follow, so the ids after the last such token are not certain and are left out. */
static int put_windows(sm_encoder *e, const u8 *p, u32 n, u32 span, int open, u8 **out, int wide, u32 *done) {
    const sm_model *m = e->model;
    u32 *ids = e->ids[0], *others = e->ids[1], begin = 0, end = span < n ? span : n;
    u32 count = merge_again(e, p, end, 0);
    while (end < n) {
        int joined = 0;
        for (u32 overlap = 64; overlap <= span / 2 && !joined; overlap *= 2) {
            /* The last token that begins before the overlap. */
            u32 at = 0, place = begin, next;
            while ((next = place + length_of(m, ids[at])) <= end - overlap) place = next, at++;
            if (place == begin) break;
            u32 new_end = n - place < span ? n : place + span, new_count = merge_again(e, p + place, new_end - place, 1);
            /* The first token that is the same in both. */
            u32 a = at, b = 0, from_a = place, from_b = place;
            while (a < count && b < new_count && !(joined = from_a == from_b && ids[a] == others[b])) {
                if (from_a <= from_b) from_a += length_of(m, ids[a++]);
                else from_b += length_of(m, others[b++]);
            }
            if (!joined) continue;
            *out = put_all(*out, wide, ids, a);
            *done = begin = from_b;
            end = new_end;
            count = new_count - b;
            memmove(ids, others + b, count * sizeof *ids);
        }
        if (!joined) return 0;
    }
    if (!open) *out = put_all(*out, wide, ids, count);
    return 1;
}
/* Encodes bytes of which any two neighbours may merge. */
static u8 *put_stretch(sm_encoder *e, const u8 *p, u32 n, u8 *out, int wide) {
    if (n <= FIRST_WINDOW) return put_all(out, wide, e->ids[0], sm_merge(e->model, &e->scratch, e->simd, p, n, e->ids[0]));
    u32 done = 0;
    e->last_bytes = 0;
    for (u32 span = FIRST_WINDOW; span <= WINDOW; span *= 2) {
        u32 more = 0;
        if (put_windows(e, p + done, n - done, span, 0, &out, wide, &more)) return out;
        done += more;
    }
    e->error = SM_ERROR_STITCH;
    return out;
}
/* Encodes the beginning of a piece whose end is not known, up to a certain token that begins with a character. */
static u8 *put_open(sm_encoder *e, const u8 *p, u32 n, u8 *out, int wide, u32 *done) {
    int joined = 0;
    *done = e->last_bytes = 0;
    for (u32 span = FIRST_WINDOW; span <= WINDOW && !joined; span *= 2) {
        u32 more = 0;
        joined = put_windows(e, p + *done, n - *done, span, 1, &out, wide, &more);
        *done += more;
    }
    while (*done && (p[*done] & 0xC0) == 0x80) {
        u32 id = 0;
        u16 narrow;
        out -= (size_t)2 << wide;
        if (wide) {
            memcpy(&id, out, 4);
        } else {
            memcpy(&narrow, out, 2);
            id = narrow;
        }
        *done -= length_of(e->model, id);
    }
    return out;
}
/* As put_stretch() for whole characters, where no token has only a part of one and a part of another. If ranks come in ascending
 * order, characters are then merged first, each by itself, and the result is in a table. */
static u8 *put_chars(sm_encoder *e, const u8 *p, u32 n, u8 *out, int wide) {
    u32 *ids = e->ids[0], count = 0, length;
    for (u32 at = 0; at < n; at += length) {
        u32 code = decode(p + at, p + n, &length);
        if (code < 0x10000) {
            const OneChar *own = &e->model->chars[code];
            for (u32 i = 0; i < own->count; i++) ids[count++] = own->ids[i];
        } else {
            count += sm_merge(e->model, &e->scratch, e->simd, p + at, length, ids + count);
        }
    }
    return put_all(out, wide, ids, sm_merge_ids(e->model, &e->scratch, e->simd, count, ids));
}
/* Encodes a part of a piece between two borders that no token covers. Only pieces are looked up as a whole. */
static u8 *put_part(sm_encoder *e, const u8 *p, u32 n, int chars, const u8 *limit, u8 *out, int wide) {
    chars = chars && n <= FIRST_WINDOW;
    if (n > SHORT_PIECE) return chars ? put_chars(e, p, n, out, wide) : put_stretch(e, p, n, out, wide);
    if (n == 1) return put(out, wide, e->model->byte_id[*p]);
    u64 key[2];
    size_t at;
    make_key(p, n, limit, key);
    key[1] |= (u64)1 << 63;
    Slot *set = e->slots + set_of(e->shift, key);
    if (look_up(set, key, &at)) return put_slot(out, wide, set + at);
    u8 *end = chars ? put_chars(e, p, n, out, wide) : put_stretch(e, p, n, out, wide);
    if (end - out <= SLOT_ID_BYTES) keep(set, key, out, (u32)((end - out) >> (1 + wide)), wide, 0);
    return end;
}
/* Encodes a piece by merging. A long one is divided between bytes that are neighbours in no token. */
static u8 *put_merged(sm_encoder *e, const u8 *p, u32 n, const u8 *limit, u8 *out, int wide) {
    if (n <= 16) return put_stretch(e, p, n, out, wide);
    u32 begin = 0;
    for (u32 i = 1; i < n; i++) {
        if (are_neighbours(e->model, p[i - 1], p[i])) continue;
        out = put_part(e, p + begin, i - begin, 0, limit, out, wide);
        begin = i;
    }
    return put_part(e, p + begin, n - begin, 0, limit, out, wide);
}

INLINE u32 flags_of(const sm_model *m, u32 code) { return code < 0x10000 ? m->chars[code].flags : 0x3FF; }

/* Encodes a piece with characters beyond ASCII. Nothing merges across a border between two characters that no token can
 * cover, so both sides are encoded alone; the ids of a character between two such borders are in a table. */
static u8 *put_by_chars(sm_encoder *e, const u8 *p, u32 n, const u8 *limit, u8 *out, int wide) {
    const sm_model *m = e->model;
    const u8 *end = p + n;
    u32 begin = 0, at = 0, length, code = decode(p, end, &length), flags = flags_of(m, code);
    int chars = m->in_order;
    for (;;) {
        /* Most of Chinese and Japanese: three bytes, and no token goes from this character into the next. */
        while (begin == at && length == 3 && !(flags & 15)) {
            const OneChar *ids = &m->chars[code];
            put(put(put(out, wide, ids->ids[0]), wide, ids->ids[1]), wide, ids->ids[2]);
            out = forward(out, wide, ids->count);
            begin = at += 3;
            if (at >= n) return out;
            code = decode(p + at, end, &length);
            flags = flags_of(m, code);
        }
        u32 next = at + length, next_code = 0, next_length = 0, next_flags = 0;
        int crosses = 0;
        if (next < n) {
            next_code = decode(p + next, end, &next_length);
            next_flags = flags_of(m, next_code);
            if (code >= BROKEN || next_code >= BROKEN) {
                crosses = CROSSED | IN_PARTS;
            } else if (length == 1 && next_length == 1) {
                crosses = CROSSED;
            } else if ((flags >> (next_length - 1) & 1) && (next_flags >> (3 + length) & 1)) {
                u64 key = (u64)code << 24 | next_code | (u64)1 << 48;
                u64 *memo = e->memo + (key * 0x9E3779B97F4A7C15u >> 50);
                int parts = flags >> 8 & next_flags >> 9 & 1;
                if (*memo >> 2 != key) *memo = key << 2 | (u64)sm_crosses(m, p + at, length, p + next, next_length, parts);
                crosses = *memo & 3;
            }
        }
        chars &= !(crosses & IN_PARTS);
        if (!crosses) {
            if (begin == at && code < 0x10000) out = put_all(out, wide, m->chars[code].ids, m->chars[code].count);
            else out = put_part(e, p + begin, next - begin, chars, limit, out, wide);
            begin = next;
            chars = m->in_order;
            if (next >= n) return out;
        }
        at = next, length = next_length, code = next_code, flags = next_flags;
    }
}

static int any_high(const u8 *p, u32 n) {
    u8 all = 0;
    for (u32 i = 0; i < n; i++) all |= p[i];
    return all >> 7;
}

/* Encodes a piece without the cache. */
static u8 *put_new(sm_encoder *e, const u8 *p, u32 n, const u8 *limit, u8 *out, int wide) {
    const sm_model *m = e->model;
    if (n <= m->longest && (m->whole_lengths[n / 64] >> n % 64 & 1)) {
        u32 id = sm_token(m, p, n);
        if (id != NONE) return put(out, wide, id);
    }
    return any_high(p, n) ? put_by_chars(e, p, n, limit, out, wide) : put_merged(e, p, n, limit, out, wide);
}

/* ---- pieces with more bytes or ids than fit in a slot */

typedef struct {
    u64 words[4]; /* the bytes, and in the last byte their number */
} LongKey;
static LongKey long_key(const u8 *p, u32 n, const u64 *key) {
    if (n <= SHORT_PIECE) return (LongKey){{key[0], key[1], 0, 0}};
    u64 third = load_some(p + 16, n - 16 < 8 ? n - 16 : 8), fourth = n > 24 ? load_some(p + 24, n - 24) : 0;
    return (LongKey){{load64(p), load64(p + 8), third, fourth | (u64)n << 56}};
}
static LongSlot *long_slot(sm_encoder *e, const LongKey *key) {
    const u64 *words = key->words;
    return e->longs + (hash_key(words[0] ^ words[2] * 0xA0761D6478BD642Fu, words[1] + words[3]) >> e->long_shift);
}
/* A failed look-up misses all caches of the processor. A short piece rarely has more ids than fit in a slot, except of 32
 * bits. Chinese and Japanese rarely repeat a long piece, and small vocabularies have few tokens that join their characters. */
INLINE int may_be_long(const u8 *p, u32 n, int wide) {
    return n <= LONG_PIECE && (wide ? n > SHORT_PIECE / 2 : n > SHORT_PIECE && *p < 0xE3);
}

/* ---- a piece that is not in its set */

/* Encodes a piece that is in the table of long ones, or new. */
APART u8 *put_piece(sm_encoder *e, const u8 *p, u32 n, const u64 *key, Slot *set, const u8 *limit, u8 *out, int wide) {
    LongKey whole;
    LongSlot *slot = NULL;
    if (may_be_long(p, n, wide)) {
        whole = long_key(p, n, key);
        slot = long_slot(e, &whole);
        if (!memcmp(slot->key, whole.words, sizeof slot->key)) {
            memcpy(out, slot->ids, LONG_SLOT_ID_BYTES);
            return forward(out, wide, slot->count);
        }
    }
    u8 *end = put_new(e, p, n, limit, out, wide);
    size_t size = (size_t)(end - out);
    u32 count = (u32)(size >> (1 + wide));
    if (n <= SHORT_PIECE && size <= SLOT_ID_BYTES) {
        keep(set, key, out, count, wide, 0);
    } else if (slot && size <= LONG_SLOT_ID_BYTES) {
        memcpy(slot->key, whole.words, sizeof slot->key);
        memcpy(slot->ids, out, size);
        slot->count = count;
    }
    return end;
}

/* ---- rows */

/* Encodes the pieces that begin at e->starts: all keys are computed first, so that their slots can be prefetched. */
INLINE u8 *put_pieces(sm_encoder *e, const u8 *text, u32 count, const u8 *limit, u8 *out, int wide) {
    const u32 *starts = e->starts, shift = e->shift;
    Slot *slots = e->slots;
    u64(*keys)[2] = e->keys;
    u32 *places = e->places;
    u32 unguarded = count; /* pieces with 16 bytes before the limit, so that it need not be checked for each */
    while (unguarded && limit - (text + starts[unguarded - 1]) < 16) unguarded--;
    for (u32 i = 0; i < count; i++) {
        const u8 *p = text + starts[i];
        u32 n = starts[i + 1] - starts[i];
        if (LIKELY(i < unguarded)) make_key_of(load64(p), load64(p + 8), n, keys[i]);
        else make_key(p, n, limit, keys[i]);
        places[i] = set_of(shift, keys[i]);
        PREFETCH(slots + places[i]);
    }
    for (u32 i = 0; i < count; i++) {
        Slot *set = slots + places[i];
        size_t at;
        if (LIKELY(look_up(set, keys[i], &at))) out = put_slot(out, wide, set + at);
        else out = put_piece(e, text + starts[i], starts[i + 1] - starts[i], keys[i], set, limit, out, wide);
    }
    return out;
}
/* A function for each width of ids, with and without vector instructions. */
#define PUT(name, wide)                                                                           \
    static u8 *name(sm_encoder *e, const u8 *text, u32 count, const u8 *limit, u8 *out) {         \
        return put_pieces(e, text, count, limit, out, wide);                                      \
    }
PUT(put_narrow, 0)
PUT(put_wide, 1)
#if defined(HAVE_AVX2)
TARGET_AVX2 PUT(put_narrow_simd, 0)
TARGET_AVX2 PUT(put_wide_simd, 1)
#else
#define put_narrow_simd put_narrow
#define put_wide_simd put_wide
#endif
static Put *const PUTS[2][2] = {{put_narrow, put_wide}, {put_narrow_simd, put_wide_simd}};

/* ---- the interface */

int32_t sm_abi(void) { return SM_ABI; }

int64_t sm_encoder_least(void) { return (i64)sizeof(sm_encoder) + 64 + 1024 * 72; }

int64_t sm_encoder_build(void *memory, int64_t bytes, const sm_model *model, int32_t wide, int32_t simd) {
    if (!memory || !model || (!wide && model->count > 0x10000) || ((uintptr_t)memory & 63)) return SM_ERROR_ARGUMENT;
    if (bytes < sm_encoder_least()) return SM_ERROR_SPACE;
    sm_encoder *e = memory;
    memset(e, 0, sizeof *e);
    e->model = model;
    i64 head = ((i64)sizeof *e + 63) & ~(i64)63;
    /* A power of two of sets, and an eighth of it for long pieces. */
    u32 sets = 1024;
    for (e->shift = 54; sets < 1u << 30 && (i64)sets * 2 * 72 <= bytes - head; e->shift--) sets *= 2;
    e->long_shift = e->shift + 3;
    u32 longs = sets / 8;
    e->slots = (Slot *)((u8 *)memory + head);
    e->longs = (LongSlot *)(e->slots + 2 * (size_t)sets);
    e->wide = wide != 0;
    e->simd = sm_simd(simd);
    e->put = PUTS[e->simd][e->wide];
    memset(e->slots, 0, (size_t)sets * 64);
    memset(e->longs, 0, (size_t)longs * 64);
    u32 kept = 0;
    for (u32 i = 0; i < model->count && kept < sets / 2; i++) { /* the rest of the cache is for what the text has */
        u32 n = model->begin[i + 1] - model->begin[i];
        const u8 *t = model->text + model->begin[i];
        if (!n || n > SHORT_PIECE || sm_token(model, t, n) != i) continue;
        u64 key[2];
        u8 id[4];
        put(id, e->wide, i);
        make_key(t, n, t + n, key);
        Slot *set = e->slots + set_of(e->shift, key);
        keep(set, key, id, 1, e->wide, 1);
        kept++;
    }
    return head + (i64)sets * 64 + (i64)longs * 64;
}

int64_t sm_encode(sm_encoder *e, const uint8_t *data, int64_t data_bytes, const int64_t *offsets, int64_t rows, int64_t gap,
                  int64_t eot, int32_t before, void *ids, int64_t capacity, int64_t *counts, int64_t *done) {
    if (!e || (!data && data_bytes) || !offsets || !ids || !counts || !done) return SM_ERROR_ARGUMENT;
    if (rows < 0 || gap < 0 || capacity < 0 || data_bytes < 0) return SM_ERROR_ARGUMENT;
    if (eot > (e->wide ? (i64)0xFFFFFFFF : 0xFFFF)) return SM_ERROR_ARGUMENT;
    for (i64 i = 0; i < rows; i++) {
        if (offsets[i] < 0 || offsets[i] > data_bytes || offsets[i + 1] < offsets[i]) return SM_ERROR_ARGUMENT;
        i64 size = offsets[i + 1] - offsets[i] - gap;
        if (size < 0 || size >> 31 || size > data_bytes - offsets[i]) return SM_ERROR_ARGUMENT;
    }
    u8 *out = ids;
    i64 total = 0, row = 0;
    e->error = 0;
    for (; row < rows; row++) {
        const u8 *text = data + offsets[row];
        u32 size = (u32)(offsets[row + 1] - offsets[row] - gap), at = 0;
        if (capacity - total < (i64)size + SM_ROOM) break;
        if (eot >= 0 && before) out = put(out, e->wide, (u32)eot);
        while (at < size) {
            u32 count = sm_split(e->model->scheme, e->simd, text, size, data + data_bytes, &at, e->starts, BATCH);
            e->starts[count] = at;
            out = e->put(e, text, count, data + data_bytes, out);
            if (e->error) return e->error;
        }
        if (eot >= 0 && !before) out = put(out, e->wide, (u32)eot);
        i64 now = (out - (u8 *)ids) >> (1 + e->wide);
        counts[row] = now - total;
        total = now;
    }
    *done = row;
    return total;
}

int64_t sm_encode_open(sm_encoder *e, const uint8_t *text, int64_t n, int32_t last, int32_t follows, int32_t *state, void *ids,
                       int64_t capacity, int64_t *certain) {
    if (!e || !text || !state || !ids || !certain || n < 0 || n >> 31) return SM_ERROR_ARGUMENT;
    if (*state < AT_START || *state >= STATES || follows < SM_UNKNOWN || follows > SM_END_FOLLOWS) return SM_ERROR_ARGUMENT;
    if (capacity < n + SM_ROOM) return SM_ERROR_SPACE;
    const u8 *end = text + n, *p = text, *decided = last ? end : sm_certain_end(text, end);
    int scheme = e->model->scheme, wide = e->wide, open = 0, ends = 0;
    u8 *out = ids;
    e->error = 0;
    if (*state != AT_START && n) {
        const u8 *stop = sm_piece_rest(scheme, *state, p, end);
        open = stop > decided;
        if (!open) {
            out = put_stretch(e, p, (u32)(stop - p), out, wide);
            *state = AT_START;
            p = stop;
        }
    }
    for (u32 at = (u32)(p - text); at < n && !open;) {
        u32 count = sm_split(scheme, e->simd, text, (u32)n, end, &at, e->starts, BATCH), sure = count;
        e->starts[count] = at;
        while (sure && text + e->starts[sure] > decided) sure--;
        out = e->put(e, text, sure, end, out);
        p = text + e->starts[sure];
        open = sure < count;
    }
    while (open && !e->error) {
        u32 size = (u32)(sm_open_end(scheme, *state, p, end, follows, &ends) - p), done = 0;
        if (ends && *state != AT_START) {
            out = put_stretch(e, p, size, out, wide);
        } else if (ends) {
            e->starts[0] = (u32)(p - text), e->starts[1] = e->starts[0] + size;
            out = e->put(e, text, 1, end, out);
        } else if (size > 2 * LONGEST) { /* else it may be a token */
            out = put_open(e, p, size, out, wide, &done);
        }
        if (done) *state = sm_state_after(scheme, *state, p, p + done);
        if (ends) *state = AT_START;
        p += ends ? size : done;
        open = ends;
    }
    if (e->error) return e->error;
    *certain = p - text;
    return (out - (u8 *)ids) >> (1 + wide);
}
