/* The tables of a model, built once.
 *
 * One pair for each token is enough. When two neighbours are together the bytes of a token, nothing has been merged
 * across its ends, so what happened between them is what happens to the bytes of that token alone. That ends with one
 * certain pair, or never gets there. So of all pairs that make a token, only one can occur.
 */
#include "model.h"

/* ---- a rank file */

int64_t sm_ranks(const uint8_t *file, int64_t n, uint8_t *text, int64_t *offsets, int64_t most) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    u8 value[256];
    if ((!file && n) || n < 0 || !text || !offsets || most < 0) return SM_ERROR_ARGUMENT;
    memset(value, 255, sizeof value);
    for (u32 i = 0; i < 64; i++) value[(u8)DIGITS[i]] = (u8)i;
    i64 count = 0, used = 0, at = 0;
    while (at < n) {
        u32 bits = 0, digits = 0, padding = 0;
        i64 begin = used, rank = 0;
        for (; at < n && value[file[at]] < 64; at++) {
            bits = bits << 6 | value[file[at]];
            if (digits++ % 4) text[used++] = (u8)(bits >> (6 - 2 * ((digits - 1) % 4)));
        }
        for (; at < n && file[at] == '='; at++) padding++;
        if (!digits || digits % 4 == 1 || padding != (4 - digits % 4) % 4) return SM_ERROR_VOCABULARY;
        if (at + 1 >= n || file[at++] != ' ' || file[at] < '0' || file[at] > '9') return SM_ERROR_VOCABULARY;
        for (; at < n && file[at] >= '0' && file[at] <= '9' && rank <= most; at++) rank = 10 * rank + (file[at] - '0');
        if (at < n && file[at++] != '\n') return SM_ERROR_VOCABULARY;
        if (rank < count || rank >= most) return SM_ERROR_VOCABULARY;
        while (count <= rank) offsets[count++] = begin; /* ranks that are left out are empty tokens */
    }
    offsets[count] = used;
    return count;
}

/* ---- the vocabulary */

static u64 mix(u64 h) {
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}
static u64 hash_bytes(const u8 *p, u32 n) {
    u64 h = n;
    for (; n >= 8; p += 8, n -= 8) h = mix(h ^ load64(p)) * 0xD6E8FEB86659FD93u;
    return mix(h ^ load_some(p, n));
}

/* The id of the token that a piece of these bytes is, or NONE. */
u32 sm_token(const sm_model *m, const u8 *p, u32 n) {
    if (n > m->longest) return NONE;
    for (u32 at = (u32)hash_bytes(p, n) & m->vocabulary_mask;; at = (at + 1) & m->vocabulary_mask) {
        u32 id = m->vocabulary[at];
        if (id == NONE) return NONE;
        if (m->begin[id + 1] - m->begin[id] == n && !memcmp(m->text + m->begin[id], p, n)) return id;
    }
}

/* ---- borders between characters that no token covers */

/* What a token has of the two characters at a border: the end of the one, the beginning of the other. */
static u32 crossing_key(const u8 *a, u32 la, const u8 *b, u32 lb) {
    u64 h = (load_some(a, la) << 32 | load_some(b, lb)) ^ (u64)la << 62 ^ (u64)lb << 30;
    u32 key = (u32)(mix(mix(h) * 0xD6E8FEB86659FD93u) >> 16);
    return key ? key : 1;
}
static int crossing_has(const sm_model *m, u32 key) {
    for (u32 at = key & m->crossing_mask; m->crossings[at]; at = (at + 1) & m->crossing_mask)
        if (m->crossings[at] == key) return 1;
    return 0;
}
/* Whether a token may cover the border of these two characters, and, if `parts`, whether one that has only a part of one
 * of them. It may say yes where there is none (two keys that are the same): that costs time, and changes no result. */
int sm_crosses(const sm_model *m, const u8 *a, u32 la, const u8 *b, u32 lb, int parts) {
    int crosses = crossing_has(m, crossing_key(a, la, b, lb)) ? CROSSED : 0;
    if (!parts) return crosses;
    for (u32 i = 1; i <= la; i++)
        for (u32 j = 1; j <= lb; j++)
            if ((i < la || j < lb) && crossing_has(m, crossing_key(a + la - i, i, b, j))) return CROSSED | IN_PARTS;
    return crosses;
}
/* The borders inside of a token where one of the two characters is not ASCII, one after the other; 0 at the end. */
typedef struct {
    const u8 *a, *b;
    u32 la, lb;
} Border;
static u32 next_border(const u8 *t, u32 n, u32 k, Border *border) {
    for (; k < n; k++) {
        if ((t[k] & 0xC0) == 0x80 || (t[k] < 0x80 && t[k - 1] < 0x80)) continue;
        u32 j = k - 1;
        while (j > 0 && (t[j] & 0xC0) == 0x80) j--;
        if (k - j > 4) continue; /* no character has so many bytes, so this is never in valid text */
        u32 lb = char_length(t[k]);
        *border = (Border){t + j, t + k, k - j, lb < n - k ? lb : n - k};
        return k + 1;
    }
    return 0;
}
/* Bits 0 to 3: a token may go from this character into one of 1 to 4 bytes; bits 4 to 7: from such a one into this. Bits 8
 * and 9 say that of tokens that have only a part of one of the two. */
static void crossing_flags(sm_model *m, const Border *border) {
    const u8 *a = border->a, *b = border->b;
    u32 whole = char_length(b[0]), missing = whole - border->lb, n, code;
    int parts = (a[0] & 0xC0) == 0x80 || missing;
    u16 right = (u16)(1u << (whole - 1) | (parts ? 256 : 0));
    /* A part of a character may belong to one of any length. */
    u16 left = (u16)(((a[0] & 0xC0) == 0x80 ? 0xE0 : 16u << (char_length(a[0]) - 1)) | (parts ? 512 : 0));
    /* All characters that end with a. Those of four bytes have all flags. */
    if ((a[0] & 0xC0) != 0x80) {
        code = decode(a, a + border->la, &n);
        if (n == border->la && code < 0x10000) m->chars[code].flags |= right;
    } else if (border->la <= 2) {
        for (code = 0, n = 0; n < border->la; n++) code = code << 6 | (a[n] & 63u);
        for (; code < 0x10000; code += 1u << 6 * border->la) m->chars[code].flags |= right;
    }
    /* All characters that begin with b. */
    if (whole == 1) m->chars[b[0]].flags |= left;
    if (whole == 1 || whole == 4) return;
    code = b[0] & (whole == 2 ? 31u : 15u);
    for (u32 i = 1; i < border->lb; i++) code = code << 6 | (b[i] & 63u);
    for (u32 i = 0; i < 1u << 6 * missing; i++) m->chars[(code << 6 * missing | i) & 0xFFFF].flags |= left;
}

/* ---- building */

static u32 power_of_two(i64 least) {
    u32 size = 16;
    while (size < least) size *= 2;
    return size;
}
/* Takes aligned parts of a buffer one after the other; with no buffer it only counts. */
typedef struct {
    u8 *memory;
    i64 used;
} Arena;
static void *take(Arena *arena, i64 bytes) {
    void *part = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (bytes + 63) & ~(i64)63;
    return part;
}
static void lay_out(sm_model *m, Arena *arena, i64 text_bytes, i64 count, i64 merge_count, i64 borders) {
    int by_list = merge_count >= 0;
    if (!by_list) merge_count = count;
    u32 vocabulary = power_of_two(2 * count), crossings = power_of_two(2 * borders);
    u32 groups = power_of_two(merge_count * 5 / 16), bits = power_of_two(8 * merge_count);
    for (m->group_shift = 64; groups >> (64 - m->group_shift) > 1;) m->group_shift--;
    m->text = take(arena, text_bytes);
    m->begin = take(arena, (count + 1) * 4);
    m->vocabulary = take(arena, (i64)vocabulary * 4);
    m->vocabulary_mask = vocabulary - 1;
    m->results = by_list ? take(arena, merge_count * 4) : NULL;
    m->pairs = take(arena, ((i64)groups + 1) * 32);
    m->group_mask = groups - 1;
    m->pair_bits = take(arena, (i64)bits / 8);
    m->bit_mask = bits - 1;
    m->byte_pair = take(arena, 65536 * 4);
    m->chars = take(arena, 65536 * (i64)sizeof(OneChar));
    m->neighbours = take(arena, 65536 / 8);
    m->crossings = take(arena, (i64)crossings * 4);
    m->crossing_mask = crossings - 1;
}
static int measure(const u8 *text, const i64 *offsets, i64 count, i64 *borders) {
    if (!text || !offsets || count < 1 || count >= NONE || offsets[0] != 0) return SM_ERROR_ARGUMENT;
    *borders = 0;
    for (i64 i = 0; i < count; i++) {
        if (offsets[i + 1] < offsets[i]) return SM_ERROR_ARGUMENT;
        if (offsets[i + 1] - offsets[i] > LONGEST || offsets[i + 1] >> 31) return SM_ERROR_VOCABULARY;
        Border border;
        for (u32 k = 1; (k = next_border(text + offsets[i], (u32)(offsets[i + 1] - offsets[i]), k, &border));)
            ++*borders;
    }
    return 0;
}
int64_t sm_model_bytes(const uint8_t *text, const int64_t *offsets, int64_t count, int64_t merge_count, int64_t *scratch) {
    i64 borders;
    int error = measure(text, offsets, count, &borders);
    if (error) return error;
    if (merge_count >= NONE) return SM_ERROR_VOCABULARY;
    sm_model m;
    Arena arena = {NULL, 0};
    take(&arena, sizeof m);
    lay_out(&m, &arena, offsets[count], count, merge_count, borders);
    *scratch = (i64)sizeof(Scratch) + 5 * count;
    return arena.used + 64;
}

/* The one pair that makes a token, by merging its bytes alone in the order of all tokens; 0 if none does. It asks the
 * vocabulary for every two neighbours, so it needs no pairs. */
static int last_pair(const sm_model *m, u32 token, u32 *left, u32 *right) {
    const u8 *t = m->text + m->begin[token];
    u32 n = m->begin[token + 1] - m->begin[token], parts = n;
    u16 begin[LONGEST + 1];
    u32 pair[LONGEST]; /* id of part i and the next together */
    for (u32 i = 0; i <= n; i++) begin[i] = (u16)i;
    for (u32 i = 0; i + 1 < n; i++) pair[i] = sm_token(m, t + i, 2);
    while (parts > 2) {
        u32 best = NONE, at = 0;
        for (u32 i = 0; i + 1 < parts; i++)
            if (pair[i] < best) best = pair[i], at = i;
        if (best == NONE) return 0;
        parts--;
        for (u32 i = at + 1; i <= parts; i++) begin[i] = begin[i + 1];
        for (u32 i = at + 1; i + 1 < parts; i++) pair[i] = pair[i + 1];
        if (at + 1 < parts) pair[at] = sm_token(m, t + begin[at], begin[at + 2] - begin[at]);
        if (at) pair[at - 1] = sm_token(m, t + begin[at - 1], begin[at + 1] - begin[at - 1]);
    }
    *left = sm_token(m, t, begin[1]);
    *right = sm_token(m, t + begin[1], n - begin[1]);
    return *left != NONE && *right != NONE;
}
static void remember(sm_model *m, u32 id) {
    u32 at = (u32)hash_bytes(m->text + m->begin[id], length_of(m, id)) & m->vocabulary_mask;
    while (m->vocabulary[at] != NONE) at = (at + 1) & m->vocabulary_mask;
    m->vocabulary[at] = id;
}
static void insert_pair(sm_model *m, u32 left, u32 right, u32 rank) {
    u8 a = m->text[m->begin[left]], b = m->text[m->begin[right]];
    sm_pair_insert(m, left, right, rank);
    if (m->byte_id[a] == left && m->byte_id[b] == right && m->byte_pair[a << 8 | b] == NONE) m->byte_pair[a << 8 | b] = rank;
}
static void fill(u32 *table, size_t count, u32 value) {
    for (size_t i = 0; i < count; i++) table[i] = value;
}

/* What building needs beside the model. */
enum { FIRST = 1, MADE = 2 }; /* notes: the first token of these bytes; merging its bytes makes it */
typedef struct {
    sm_model *model;
    Scratch *working;
    u32 *rank_of; /* of each token */
    u8 *notes;    /* of each token */
    int simd;
    u32 ids[LONGEST];
} Builder;

static u32 merge_token(Builder *b, u32 id) {
    const sm_model *m = b->model;
    return sm_merge(m, b->working, b->simd, m->text + m->begin[id], length_of(m, id), b->ids);
}

/* Bytes → id. Of two tokens with the same bytes the first counts. */
static int add_vocabulary(Builder *b) {
    sm_model *m = b->model;
    fill(m->vocabulary, (size_t)m->vocabulary_mask + 1, NONE);
    for (u32 i = 0; i < m->count; i++) {
        u32 n = length_of(m, i);
        if (n > m->longest) m->longest = n;
        b->notes[i] = n && sm_token(m, m->text + m->begin[i], n) == NONE ? FIRST : 0;
        if (b->notes[i]) remember(m, i);
    }
    for (int i = 0; i < 256; i++) {
        u8 byte = (u8)i;
        if ((m->byte_id[i] = sm_token(m, &byte, 1)) == NONE) return SM_ERROR_VOCABULARY;
    }
    return 0;
}

/* Whether the bytes of the first two tokens, joined, are those of the third. */
static int makes(const sm_model *m, u32 left, u32 right, u32 result) {
    u32 a = length_of(m, left), b = length_of(m, right);
    const u8 *made = m->text + m->begin[result];
    return a && b && a + b == length_of(m, result) && !memcmp(made, m->text + m->begin[left], a) &&
           !memcmp(made + a, m->text + m->begin[right], b);
}
static int add_listed_merges(Builder *b, const u32 *merges, i64 merge_count) {
    sm_model *m = b->model;
    fill(b->rank_of, m->count, 0);
    for (i64 i = 0; i < merge_count; i++) {
        u32 left = merges[3 * i], right = merges[3 * i + 1], result = merges[3 * i + 2];
        if (left >= m->count || right >= m->count || result >= m->count) return SM_ERROR_ARGUMENT;
        if (!makes(m, left, right, result)) return SM_ERROR_VOCABULARY;
        m->results[i] = result;
        b->rank_of[result] = (u32)i + 1; /* of the last that makes it */
        insert_pair(m, left, right, (u32)i);
    }
    for (i64 i = 0; i < merge_count; i++)
        m->in_order &= b->rank_of[merges[3 * i]] <= i && b->rank_of[merges[3 * i + 1]] <= i;
    return 0;
}
/* The one pair that makes each token. The table has the pairs of lower ranks, and these come first. If they leave two parts,
 * those are the pair; else parts of a higher rank are needed, or nothing makes this token. */
static void add_merges_by_rank(Builder *b) {
    sm_model *m = b->model;
    for (u32 i = 0; i < m->count; i++) {
        u32 left, right;
        if (length_of(m, i) < 2 || !(b->notes[i] & FIRST)) continue;
        if (merge_token(b, i) == 2) {
            left = b->ids[0], right = b->ids[1];
            b->notes[i] |= MADE;
        } else if (!last_pair(m, i, &left, &right)) {
            continue; /* it is found only when it is a whole piece */
        }
        insert_pair(m, left, right, i);
        m->in_order &= (left < i || length_of(m, left) == 1) && (right < i || length_of(m, right) == 1);
    }
}
static int add_merges(Builder *b, const u32 *merges, i64 merge_count) {
    sm_model *m = b->model;
    int error = 0;
    m->in_order = 1;
    memset(m->pairs, 255, 32 * ((size_t)m->group_mask + 2));
    fill(m->pair_bits, ((size_t)m->bit_mask + 1) / 32, 0);
    fill(m->byte_pair, 65536, NONE);
    if (merges) error = add_listed_merges(b, merges, merge_count);
    else add_merges_by_rank(b);
    return error;
}

/* Tokens that merging does not make of their own bytes are found only if a piece that is a token is that token. */
static void note_whole_tokens(Builder *b) {
    sm_model *m = b->model;
    for (u32 i = 0; i < m->count; i++) {
        u32 n = length_of(m, i);
        if (!n || b->notes[i] & MADE) continue;
        if (merge_token(b, i) == 1 && b->ids[0] == i) b->notes[i] |= MADE;
        else if (m->whole_first && b->notes[i] & FIRST) m->whole_lengths[n / 64] |= (u64)1 << n % 64;
    }
    if (m->whole_first) return;
    fill(m->vocabulary, (size_t)m->vocabulary_mask + 1, NONE);
    for (u32 i = 0; i < m->count; i++)
        if (b->notes[i] & MADE) remember(m, i);
}

/* The borders between bytes, and between characters, that some token covers. */
static void add_borders(sm_model *m) {
    memset(m->neighbours, 0, 65536 / 8);
    fill(m->crossings, (size_t)m->crossing_mask + 1, 0);
    memset(m->chars, 0, 65536 * sizeof(OneChar));
    for (u32 i = 0; i < m->count; i++) {
        const u8 *t = m->text + m->begin[i];
        u32 n = length_of(m, i);
        Border border;
        for (u32 k = 1; k < n; k++) m->neighbours[t[k - 1] << 5 | t[k] >> 3] |= (u8)(1 << (t[k] & 7));
        for (u32 k = 1; (k = next_border(t, n, k, &border));) {
            u32 key = crossing_key(border.a, border.la, border.b, border.lb), at = key & m->crossing_mask;
            crossing_flags(m, &border);
            while (m->crossings[at] && m->crossings[at] != key) at = (at + 1) & m->crossing_mask;
            m->crossings[at] = key;
        }
    }
}
static u32 utf8_of(u32 code, u8 *c) {
    if (code < 0x80) {
        c[0] = (u8)code;
        return 1;
    }
    if (code < 0x800) {
        c[0] = (u8)(0xC0 | code >> 6), c[1] = (u8)(0x80 | (code & 63));
        return 2;
    }
    c[0] = (u8)(0xE0 | code >> 12), c[1] = (u8)(0x80 | (code >> 6 & 63)), c[2] = (u8)(0x80 | (code & 63));
    return 3;
}
/* The ids of every character below U+10000, alone. */
static void add_chars(Builder *b) {
    for (u32 code = 0; code < 65536; code++) {
        OneChar *own = &b->model->chars[code];
        u8 c[3];
        u32 n = utf8_of(code, c);
        own->count = (u16)sm_merge(b->model, b->working, b->simd, c, n, b->ids);
        memcpy(own->ids, b->ids, own->count * sizeof *own->ids);
    }
}

int64_t sm_model_build(void *memory, int64_t bytes, void *scratch, int64_t scratch_bytes, const uint8_t *text,
                       const int64_t *offsets, int64_t count, const uint32_t *merges, int64_t merge_count,
                       int32_t scheme, int32_t whole_first) {
    if (!merges) merge_count = -1;
    i64 borders, scratch_needed = 0, needed = sm_model_bytes(text, offsets, count, merge_count, &scratch_needed);
    if (needed < 0) return needed;
    if (!memory || !scratch || scheme < 0 || scheme >= SM_SCHEMES || ((uintptr_t)memory & 63) || ((uintptr_t)scratch & 63))
        return SM_ERROR_ARGUMENT;
    if (bytes < needed || scratch_bytes < scratch_needed) return SM_ERROR_SPACE;
    measure(text, offsets, count, &borders);
    Arena arena = {memory, 0};
    sm_model *m = take(&arena, sizeof *m);
    memset(m, 0, sizeof *m);
    lay_out(m, &arena, offsets[count], count, merge_count, borders);
    m->scheme = scheme;
    m->whole_first = whole_first;
    m->count = (u32)count;
    memcpy((u8 *)m->text, text, (size_t)offsets[count]);
    for (i64 i = 0; i <= count; i++) ((u32 *)m->begin)[i] = (u32)offsets[i];

    Scratch *working = scratch;
    u32 *rank_of = (u32 *)(working + 1);
    Builder b = {m, working, rank_of, (u8 *)(rank_of + count), sm_simd(1), {0}};
    int error = add_vocabulary(&b);
    if (!error) error = add_merges(&b, merges, merge_count);
    if (error) return error;
    note_whole_tokens(&b);
    add_borders(m);
    add_chars(&b);
    return arena.used;
}
