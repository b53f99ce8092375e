/* Splits text into pieces, by the split pattern of each scheme.
 *
 * The first half is simple: one character after the other, one function for each family of patterns. It defines what
 * a piece is. No pattern looks behind, so a piece depends only on the text from its beginning on.
 */
#include "model.h"
#include "unicode_tables.h"

/* ---- one piece after the other */

u32 sm_class(u32 code) { return code < BROKEN ? CLASSES[CLASS_BLOCK[code >> 7]][code & 127] : 0; }

typedef struct {
    u32 class, length;
} Char;
INLINE Char char_at(const u8 *p, const u8 *end) {
    Char c;
    if (*p < 0x80) {
        c.class = CLASSES[0][*p];
        c.length = 1;
    } else {
        u32 code = decode(p, end, &c.length);
        c.class = sm_class(code);
    }
    return c;
}
/* Returns the end of the characters from p on whose class is in `set`, or not in it if `other`. */
INLINE const u8 *run(const u8 *p, const u8 *end, u32 set, int other) {
    while (p < end) {
        Char c = char_at(p, end);
        if (((c.class & set) != 0) == other) break;
        p += c.length;
    }
    return p;
}

/* '(?:[sdmt]|ll|ve|re) at an apostrophe: its length, or 0. In other patterns capitals count, and then also ſ for s. */
INLINE u32 contraction(const u8 *p, const u8 *end, int any_case) {
    if (end - p < 2) return 0;
    u8 fold = any_case ? 0x20 : 0, a = p[1] | fold;
    if (a == 's' || a == 'd' || a == 'm' || a == 't') return 2;
    if (end - p < 3) return 0;
    u8 b = p[2] | fold;
    if ((a == 'l' && b == 'l') || ((a == 'v' || a == 'r') && b == 'e')) return 3;
    return any_case && p[1] == 0xC5 && p[2] == 0xBF ? 3 : 0;
}

/* DeepSeek's patterns are applied one after the other, to the parts that the one before has left. A part is a run of
 * Chinese and Japanese characters, or of anything else but numbers. */
INLINE int is_cjk(u32 code) { return (code >= 0x4E00 && code <= 0x9FA5) || (code >= 0x3040 && code <= 0x30FF); }
/* The character at p; of length 0 and without a class if another part, or nothing, begins there. */
INLINE Char char_of_part(const u8 *p, const u8 *end, int cjk) {
    const Char none = {0, 0};
    Char c;
    if (p == end || (cjk && *p < 0x80)) return none;
    u32 code = decode(p, end, &c.length);
    c.class = sm_class(code);
    return is_cjk(code) != cjk || (c.class & NUMBER) ? none : c;
}
INLINE const u8 *run_of_part(const u8 *p, const u8 *end, u32 set, int cjk) {
    for (;;) {
        Char c = char_of_part(p, end, cjk);
        if (!(c.class & set)) return p;
        p += c.length;
    }
}

/* Returns the end of a piece of white space: its last line end if there is one and `by_lines`, else before its last
 * character if something else follows; if `by_parts`, in the same part. */
INLINE const u8 *white_piece(const u8 *p, const u8 *end, int by_lines, int by_parts, int whole_at_end) {
    const u8 *at = p, *line = NULL, *last = p;
    while (at < end) {
        Char c = char_at(at, end);
        if (!(c.class & WHITE)) break;
        last = at;
        at += c.length;
        if (c.class & NEWLINE) line = at;
    }
    int ended = at == end || (by_parts && !char_of_part(at, end, 0).length);
    if (ended && whole_at_end) return at;
    if (by_lines && line) return line;
    return ended || last == p ? at : last;
}

/* '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
INLINE const u8 *piece_gpt2(const u8 *p, const u8 *end) {
    if (*p == '\'') {
        u32 n = contraction(p, end, 0);
        if (n) return p + n;
    }
    const u8 *at = p + (*p == ' ');
    if (at < end) {
        Char c = char_at(at, end);
        if (c.class & LETTER) return run(at + c.length, end, LETTER, 0);
        if (c.class & NUMBER) return run(at + c.length, end, NUMBER, 0);
        if (!(c.class & WHITE)) return run(at + c.length, end, LETTER | NUMBER | WHITE, 1);
    }
    return white_piece(p, end, 0, 0, 0);
}

INLINE const u8 *digits(const u8 *p, const u8 *end, u32 most) {
    for (; most && p < end; most--) {
        Char c = char_at(p, end);
        if (!(c.class & NUMBER)) break;
        p += c.length;
    }
    return p;
}
/* What all patterns but gpt2's end with:  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+, or [\r\n/]* if `slashes`. c and
 * next are the first two characters from p on. */
INLINE const u8 *other_piece(const u8 *p, const u8 *end, Char c, Char next, u32 letter, int slashes, int whole_at_end) {
    const u8 *at = p + c.length;
    u32 not_other = letter | NUMBER | WHITE;
    if (*p == ' ' && !(next.class & not_other)) c = next, at += next.length;
    if (c.class & WHITE) return white_piece(p, end, 1, 0, whole_at_end);
    at = run(at, end, not_other, 1);
    while (at < end && (*at == '\n' || *at == '\r' || (slashes && *at == '/'))) at++;
    return at;
}
/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * `letter` is \p{L}, or that with marks; cl100k has \s++$ before \s*[\r\n]. */
INLINE const u8 *piece_llama3(const u8 *p, const u8 *end, u32 letter, u32 group, int whole_at_end) {
    if (*p == '\'') {
        u32 n = contraction(p, end, 1);
        if (n) return p + n;
    }
    Char c = char_at(p, end);
    const u8 *at = p + c.length;
    if (c.class & letter) return run(at, end, letter, 0);
    if (c.class & NUMBER) return digits(at, end, group - 1);
    Char next = {WHITE, 0};
    if (at < end) next = char_at(at, end);
    /* A mark is no letter here, so it may be the character in front. */
    if (!(c.class & NEWLINE) && (next.class & letter)) return run(at + next.length, end, letter, 0);
    return other_piece(p, end, c, next, letter, 0, whole_at_end);
}

/* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ from p on, or NULL: after as many as possible of the first
 * kind there must be one of the second, else the match goes back to the last that is of both. */
INLINE const u8 *cased(const u8 *p, const u8 *end) {
    const u8 *both = NULL; /* behind the last character of both kinds */
    while (p < end) {
        Char c = char_at(p, end);
        if (c.class & LOWER) return run(p + c.length, end, LOWER | EITHER | MARK, 0);
        if (!(c.class & (UPPER | EITHER | MARK))) break;
        p += c.length;
        if (!(c.class & UPPER)) both = p;
    }
    return both;
}
/* [^\r\n\p{L}\p{N}]?CASED(?i:'s|…)?|[^\r\n\p{L}\p{N}]?\p{upper}+\p{lower}*(?i:'s|…)?|\p{N}{1,3}
 * | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
INLINE const u8 *piece_o200k(const u8 *p, const u8 *end, u32 group, int contractions) {
    Char c = char_at(p, end);
    const u8 *at = p + c.length, *word = NULL;
    if (c.class & NUMBER) return digits(at, end, group - 1);
    int in_front = !(c.class & (LETTER | NUMBER | NEWLINE));
    if (in_front) word = cased(at, end);
    if (!word && (c.class & (LETTER | MARK))) word = cased(p, end);
    if (!word) { /* capitals only: one of both kinds, or a small one after them, would have been found above */
        const u8 *from = in_front ? at : p, *upper = run(from, end, UPPER, 0);
        if (upper > from) word = upper;
    }
    if (word) return contractions && word < end && *word == '\'' ? word + contraction(word, end, 1) : word;
    Char next = {WHITE, 0};
    if (at < end) next = char_at(at, end);
    return other_piece(p, end, c, next, LETTER, 1, 0);
}

INLINE int is_small_or_capital(u8 c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }
/* \p{N}{1,3}, then [一-龥぀-ゟ゠-ヿ]+, then in each part
 * [!-/:-@[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * What none of them matches is a piece too, up to where one does. */
INLINE const u8 *piece_deepseek(const u8 *p, const u8 *end) {
    const u32 word = LETTER | MARK;
    u32 length, code = decode(p, end, &length);
    Char c = {sm_class(code), length};
    const u8 *at = p + length;
    if (c.class & NUMBER) return digits(at, end, 2);
    int cjk = is_cjk(code);
    Char next = char_of_part(at, end, cjk);
    if (c.class & word) return run_of_part(at, end, word, cjk);
    if ((c.class & PUNCTUATION) && *p < 0x80 && at < end && is_small_or_capital(*at)) {
        while (at < end && is_small_or_capital(*at)) at++;
        return at;
    }
    if (!(c.class & (NEWLINE | PUNCTUATION)) && (next.class & word)) return run_of_part(at + next.length, end, word, cjk);
    if (*p == ' ' && (next.class & PUNCTUATION)) c = next, at += next.length;
    if (c.class & PUNCTUATION) {
        at = run_of_part(at, end, PUNCTUATION, cjk);
        while (!cjk && at < end && (*at == '\n' || *at == '\r')) at++;
        return at;
    }
    if (c.class & WHITE) return white_piece(p, end, 1, 1, 0);
    while (next.length && !next.class) {
        Char after = char_of_part(at + next.length, end, cjk);
        if (after.class & word) break; /* it goes with this word */
        at += next.length;
        next = after;
    }
    return at;
}

static const u8 *piece(int scheme, const u8 *p, const u8 *end) {
    switch (scheme) {
    case SM_GPT2: return piece_gpt2(p, end);
    case SM_CL100K: return piece_llama3(p, end, LETTER, 3, 1);
    case SM_LLAMA3: return piece_llama3(p, end, LETTER, 3, 0);
    case SM_QWEN2: return piece_llama3(p, end, LETTER, 1, 0);
    case SM_QWEN35: return piece_llama3(p, end, LETTER | MARK, 1, 0);
    case SM_O200K: return piece_o200k(p, end, 3, 1);
    case SM_DEEPSEEK: return piece_deepseek(p, end);
    default: return piece_o200k(p, end, 1, 0);
    }
}

/* ---- a text whose end is not known yet */

/* Where the last character before p begins; `begin` < p. */
static const u8 *char_before(const u8 *begin, const u8 *p) {
    const u8 *at = p - 1;
    while (at > begin && p - at < 4 && (*at & 0xC0) == 0x80) at--;
    return at;
}
/* A piece depends on at most a run of white space or of capitals behind it, and on a few bytes after that. */
enum { BEHIND = 8 };
const u8 *sm_certain_end(const u8 *text, const u8 *end) {
    if (end - text <= BEHIND) return text;
    const u8 *at = char_before(text, end - BEHIND + 1);
    u32 set = char_at(at, end).class & (WHITE | UPPER);
    while (set && at > text) {
        const u8 *before = char_before(text, at);
        int same = (char_at(before, end).class & set) != 0;
        if (same || set == UPPER) at = before; /* a piece may end before capitals, or go on if a small letter follows them */
        if (!same) break;
    }
    return at;
}

const u8 *sm_piece_rest(int scheme, int state, const u8 *p, const u8 *end) {
    int slashes = scheme == SM_O200K || scheme == SM_TEKKEN, cjk;
    u32 letter = scheme == SM_QWEN35 ? LETTER | MARK : LETTER, length;
    if (p == end) return p;
    switch (state) {
    case IN_SMALL:
        p = run(p, end, LOWER | EITHER | MARK, 0);
        return scheme == SM_O200K && p < end && *p == '\'' ? p + contraction(p, end, 1) : p;
    case IN_ASCII:
        while (p < end && is_small_or_capital(*p)) p++;
        return p;
    case IN_OTHER:
        cjk = scheme == SM_DEEPSEEK && is_cjk(decode(p, end, &length));
        if (scheme == SM_DEEPSEEK) p = run_of_part(p, end, PUNCTUATION, cjk);
        else p = run(p, end, letter | NUMBER | WHITE, 1);
        if (cjk || scheme == SM_GPT2) return p; /* fall through */
    case IN_LINES:
        while (p < end && (*p == '\n' || *p == '\r' || (slashes && *p == '/'))) p++;
        return p;
    default: return piece(scheme, p, end);
    }
}

const u8 *sm_open_end(int scheme, int state, const u8 *p, const u8 *end, int follows, int *ends) {
    const u8 *known = end - p > BEHIND ? char_before(p, end - BEHIND + 1) : p, *stop = sm_piece_rest(scheme, state, p, end);
    *ends = 0;
    if (state <= IN_RUN && scheme != SM_GPT2 && run(p, end, WHITE, 0) == end) {
        const u8 *line = end;
        while (line > p && line[-1] != '\n' && line[-1] != '\r') line--;
        if (follows == SM_END_FOLLOWS) follows = scheme == SM_CL100K ? SM_LINE_FOLLOWS : SM_OTHER_FOLLOWS;
        if (line == p || follows == SM_LINE_FOLLOWS) return known;
        *ends = follows == SM_OTHER_FOLLOWS;
        return *ends || line < known ? line : known;
    }
    return stop < known ? stop : known;
}

int sm_state_after(int scheme, int state, const u8 *p, const u8 *at) {
    u32 seen = 0;
    for (const u8 *q = p; q < at;) {
        Char c = char_at(q, at);
        seen |= c.class;
        q += c.length;
    }
    if (state == AT_START) {
        /* The first character may be one in front of a word. */
        const u32 words[SM_SCHEMES] = {LETTER | NUMBER, LETTER, LETTER, LETTER, LETTER | MARK, LETTER | MARK, LETTER | MARK, LETTER | MARK};
        Char c = char_at(p, at), next = char_at(p + c.length, at);
        int deepseek = scheme == SM_DEEPSEEK;
        if (next.class & words[scheme])
            state = deepseek && *p < 0x80 && (c.class & PUNCTUATION) && is_small_or_capital(p[1]) ? IN_ASCII : IN_RUN;
        else if ((c.class & next.class & WHITE) || (deepseek && !((c.class | next.class) & PUNCTUATION)))
            state = IN_RUN;
        else
            state = IN_OTHER;
    }
    if (state == IN_OTHER && (seen & NEWLINE)) return IN_LINES;
    return state == IN_RUN && (scheme == SM_O200K || scheme == SM_TEKKEN) && (seen & LOWER) ? IN_SMALL : state;
}

/* ---- 64 bytes at a time
 *
 * A block begins where a piece begins. Each class of characters becomes a mask with a bit for each byte (all bytes of a
 * character have its class), and shifts and ands give the places where pieces begin. What only the text behind the block
 * can decide is left to the next block, which begins at the last place that is certain. Whatever is rare in a block
 * (numbers and white space beyond ASCII, letters without case where case counts, pieces longer than a block) is split by
 * the functions above, from the block's beginning on.
 */

#if defined(HAVE_AVX2) || defined(HAVE_NEON)

typedef struct {
    u64 high, inner, upper, letter, digit, white, space, newline, quote, slash, control;
} Masks;

#if defined(HAVE_AVX2)
typedef struct {
    __m256i a, b;
} Bytes;
#define KERNEL TARGET_AVX2 INLINE
KERNEL Bytes bytes_at(const u8 *p) {
    return (Bytes){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 32))};
}
KERNEL u64 top_bits(Bytes v) { return (u32)_mm256_movemask_epi8(v.a) | (u64)(u32)_mm256_movemask_epi8(v.b) << 32; }
/* Both ends included; both are ASCII, as signed numbers. */
KERNEL u64 between(Bytes v, char low, char high) {
    __m256i above = _mm256_set1_epi8((char)(low - 1)), below = _mm256_set1_epi8((char)(high + 1));
    v.a = _mm256_and_si256(_mm256_cmpgt_epi8(v.a, above), _mm256_cmpgt_epi8(below, v.a));
    v.b = _mm256_and_si256(_mm256_cmpgt_epi8(v.b, above), _mm256_cmpgt_epi8(below, v.b));
    return top_bits(v);
}
KERNEL u64 equal(Bytes v, char c) {
    __m256i all = _mm256_set1_epi8(c);
    return top_bits((Bytes){_mm256_cmpeq_epi8(v.a, all), _mm256_cmpeq_epi8(v.b, all)});
}
KERNEL u64 below_lead(Bytes v) { /* bytes 0x80 to 0xBF */
    __m256i lead = _mm256_set1_epi8((char)0xC0);
    return top_bits((Bytes){_mm256_cmpgt_epi8(lead, v.a), _mm256_cmpgt_epi8(lead, v.b)});
}
KERNEL Bytes small(Bytes v) {
    __m256i bit = _mm256_set1_epi8(0x20);
    return (Bytes){_mm256_or_si256(v.a, bit), _mm256_or_si256(v.b, bit)};
}
#else
typedef struct {
    int8x16_t part[4];
} Bytes;
#define KERNEL INLINE
KERNEL Bytes bytes_at(const u8 *p) {
    Bytes v;
    for (int i = 0; i < 4; i++) v.part[i] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * i));
    return v;
}
/* One bit of each byte that is all ones or all zeros: sums of neighbours put eight of them into a byte. */
KERNEL u64 bits(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
    static const u8 BIT[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t bit = vld1q_u8(BIT);
    uint8x16_t ab = vpaddq_u8(vandq_u8(a, bit), vandq_u8(b, bit)), cd = vpaddq_u8(vandq_u8(c, bit), vandq_u8(d, bit));
    uint8x16_t all = vpaddq_u8(ab, cd);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
}
KERNEL u64 top_bits(Bytes v) {
    int8x16_t zero = vdupq_n_s8(0);
    return bits(vcltq_s8(v.part[0], zero), vcltq_s8(v.part[1], zero), vcltq_s8(v.part[2], zero), vcltq_s8(v.part[3], zero));
}
KERNEL u64 between(Bytes v, char low, char high) {
    int8x16_t from = vdupq_n_s8((int8_t)low), to = vdupq_n_s8((int8_t)high);
    uint8x16_t in[4];
    for (int i = 0; i < 4; i++) in[i] = vandq_u8(vcgeq_s8(v.part[i], from), vcleq_s8(v.part[i], to));
    return bits(in[0], in[1], in[2], in[3]);
}
KERNEL u64 equal(Bytes v, char c) {
    int8x16_t all = vdupq_n_s8((int8_t)c);
    return bits(vceqq_s8(v.part[0], all), vceqq_s8(v.part[1], all), vceqq_s8(v.part[2], all), vceqq_s8(v.part[3], all));
}
KERNEL u64 below_lead(Bytes v) {
    int8x16_t lead = vdupq_n_s8((int8_t)0xC0);
    return bits(vcltq_s8(v.part[0], lead), vcltq_s8(v.part[1], lead), vcltq_s8(v.part[2], lead), vcltq_s8(v.part[3], lead));
}
KERNEL Bytes small(Bytes v) {
    for (int i = 0; i < 4; i++) v.part[i] = vorrq_s8(v.part[i], vdupq_n_s8(0x20));
    return v;
}
#endif

enum { BY_GPT2, BY_LLAMA3, BY_O200K, BY_DEEPSEEK };
typedef struct {
    int family, group, whole_at_end, contractions;
    u32 letter;
} Rules;

KERNEL Masks masks_of(Bytes v, int family) {
    Masks m = {0};
    m.high = top_bits(v);
    m.letter = between(small(v), 'a', 'z');
    m.digit = between(v, '0', '9');
    m.space = equal(v, ' ');
    m.white = m.space | between(v, 9, 13);
    m.quote = equal(v, '\'');
    if (family != BY_GPT2) m.newline = equal(v, '\n') | equal(v, '\r');
    if (family == BY_O200K) m.upper = between(v, 'A', 'Z'), m.slash = equal(v, '/');
    if (family == BY_DEEPSEEK) m.control = between(v, 0, 8) | between(v, 14, 31) | equal(v, 127);
    return m;
}
/* Joins in the characters beyond ASCII among the first *valid bytes; 0 if the functions above must split the block. If text
 * follows, a character that is not whole at the end is left out, and *valid is smaller. */
KERNEL int join_high(Masks *m, Bytes v, const u8 *p, u32 *valid, int more, const Rules *rules) {
    u64 known = *valid < 64 ? ((u64)1 << *valid) - 1 : ~(u64)0;
    if (__builtin_popcountll(m->high & known) > 32) return 0;
    u64 inner = 0;
    m->inner = below_lead(v);
    for (u64 leads = m->high & ~m->inner & known; leads; leads &= leads - 1) {
        u32 at = (u32)__builtin_ctzll(leads), n = char_length(p[at]), length;
        if (at + n > *valid) {
            if (!more) return 0;
            *valid = at;
            break;
        }
        u32 code = decode(p + at, p + at + n, &length), class = sm_class(code);
        u64 here = (((u64)1 << n) - 1) << at;
        if (length != n) return 0;
        inner |= here & here << 1;
        if (class & (NUMBER | WHITE)) return 0;
        if (rules->family == BY_O200K && (class & (EITHER | MARK))) return 0;
        if (rules->family == BY_DEEPSEEK && (is_cjk(code) || !(class & (LETTER | MARK | PUNCTUATION)))) return 0;
        if (class & rules->letter) m->letter |= here;
        if (rules->family == BY_O200K && (class & UPPER)) m->upper |= here;
    }
    if (*valid < 64) known &= ((u64)1 << *valid) - 1;
    return (m->inner & known) == inner; /* else it is not UTF-8 */
}
/* All bits of `set` from those in `from` on; `from` has at most one bit in each run of the set. */
#define FLOOD(from, set) ((set) & ~((set) + (from)))

KERNEL u64 starts_gpt2(const Masks *m, u64 known, const u8 *p, u32 valid) {
    u64 letter = m->letter & known, digit = m->digit & known, white = m->white & known, other = known & ~(letter | digit | white);
    u64 same = (letter & letter << 1) | (digit & digit << 1) | (other & other << 1);
    u64 starts = (~white & ~same & ~(m->space << 1)) | (white & ~(white << 1));
    starts |= white & ~((white | ~known) >> 1 | (u64)1 << 63); /* the last one before something else */
    starts = ((starts & ~m->inner) | 1) & known;
    for (u64 quotes = m->quote & starts; quotes; quotes &= quotes - 1) {
        u32 at = (u32)__builtin_ctzll(quotes), n = contraction(p + at, p + valid, 0);
        if (!n) continue;
        starts &= ~((u64)2 << at);
        if (at + n < valid) starts |= (u64)1 << (at + n);
    }
    return starts;
}

/* All schemes but gpt2. 0 if the functions above must split the block. */
KERNEL u64 starts_words(const Masks *m, u64 known, const u8 *p, u32 valid, int more, const Rules *rules) {
    u64 letter = m->letter & known, digit = m->digit & known, white = m->white & known, newline = m->newline & known;
    u64 other = known & ~(letter | digit | white), inner = m->inner & known;
    if (rules->family == BY_O200K && (newline << 1 & m->slash)) return 0;
    if (rules->family == BY_DEEPSEEK && (m->control & known)) return 0;

    /* Line ends right behind other characters belong to them. Of the rest, white space up to its last line end is a piece,
     * and the last white character before something else begins one. */
    u64 rest = white & ~FLOOD(newline & other << 1, newline), lines = newline & rest;
    u64 starts = rest & ~(rest << 1);
    u64 last = rest & ~lines & ~((white | ~known) >> 1 | (u64)1 << 63);
    starts |= rules->family == BY_DEEPSEEK ? last & ~(digit >> 1) : last; /* a part ends before a digit */
    for (u64 after = lines << 1 & rest & ~lines; after; after &= after - 1) {
        u32 at = (u32)__builtin_ctzll(after);
        u64 behind = ~(rest & ~lines) & ~(((u64)1 << at) - 1); /* where these white characters have ended */
        if (!(behind & -behind & lines)) starts |= (u64)1 << at;
    }
    if (!more && rules->whole_at_end && (rest >> (valid - 1) & 1)) {
        u64 before = ~rest & known;
        u32 at = before ? 64 - (u32)__builtin_clzll(before) : 0;
        starts &= ((u64)2 << at) - 1;
    }

    /* A single other character in front of letters, with no space before it, belongs to them. */
    u64 other_start = other & ~(other << 1), first = other_start | FLOOD(other_start << 1 & inner, inner);
    u64 second = first << 1 & other & ~inner, bound = other_start & m->space << 1;
    u64 alone = other & ~(FLOOD(second, other) | FLOOD(bound, other));
    starts |= other_start & ~bound;
    if (rules->family == BY_DEEPSEEK) { /* both in ASCII only */
        u64 plain_letter = letter & ~m->high, joined = (alone & ~m->high) << 1 & plain_letter;
        starts |= FLOOD(joined, plain_letter) << 1 & letter & m->high;
        alone &= joined >> 1;
    }
    starts |= letter & ~(letter << 1) & ~((white & ~newline) << 1) & ~(alone << 1);

    if (rules->group == 1) {
        starts |= digit;
    } else {
        u64 four = digit & digit << 1 & digit << 2 & digit << 3;
        for (u64 at = digit & ~(digit << 1); at; at = at << 3 & four) starts |= at;
    }

    u64 quotes = m->quote & known;
    if (rules->family == BY_LLAMA3) {
        for (quotes &= starts; quotes; quotes &= quotes - 1) {
            u32 at = (u32)__builtin_ctzll(quotes), n = contraction(p + at, p + valid, 1);
            if (n && at + n < valid) starts |= (u64)1 << (at + n);
        }
    } else if (rules->family == BY_O200K) {
        u64 upper = m->upper & letter;
        u32 end = 64;
        starts |= upper & (letter & ~upper) << 1;
        if (rules->contractions)
            for (quotes &= letter << 1; quotes; quotes &= quotes - 1) {
                u32 at = (u32)__builtin_ctzll(quotes), n = at == end ? 0 : contraction(p + at, p + valid, 1);
                if (!n) continue;
                end = at + n;
                starts &= ~((((u64)1 << n) - 1) << at);
                if (end < valid) starts |= (u64)1 << end;
            }
    }
    if (more && (white >> (valid - 1) & 1)) { /* this white space depends on what follows */
        u64 before = ~white & known;
        starts &= ((u64)2 << (before ? 63 - (u32)__builtin_clzll(before) : 0)) - 1;
    }
    return ((starts & ~inner) | 1) & known;
}

/* The places in `text` from *at on; see sm_split(). */
KERNEL u32 split_blocks(int scheme, const Rules *rules, const u8 *text, u32 size, const u8 *limit, u32 *from, u32 *starts,
                        u32 room) {
    u32 count = 0, at = *from;
    while (at < size && count < room) {
        const u8 *p = text + at;
        u8 last[64];
        u32 left = size - at, valid = left < 64 ? left : 64;
        int more = left > 64, plain = 0;
        if (limit - p < 64) { /* nothing is read beyond the end */
            memset(last, 0, 64);
            memcpy(last, p, valid);
            p = last;
        }
        Bytes v = bytes_at(p);
        Masks m = masks_of(v, rules->family);
        u64 known = valid < 64 ? ((u64)1 << valid) - 1 : ~(u64)0, found = 0;
        if (m.high & known) {
            plain = !join_high(&m, v, p, &valid, more, rules);
            known = valid < 64 ? ((u64)1 << valid) - 1 : ~(u64)0;
        }
        if (!plain) {
            found = rules->family == BY_GPT2 ? starts_gpt2(&m, known, p, valid) : starts_words(&m, known, p, valid, more, rules);
            /* Four bytes must be known behind a place: a character, or a contraction. */
            if (more) found &= ((u64)1 << (valid - 4)) - 1;
            plain = !found || (more && found == 1);
        }
        if (plain) {
            u32 stop = at + 64;
            do {
                starts[count++] = at;
                at = (u32)(piece(scheme, text + at, text + size) - text);
            } while (at < stop && at < size);
            continue;
        }
        u32 here = at;
        at = size;
        if (more) {
            u32 last_found = 63 - (u32)__builtin_clzll(found);
            found &= ~((u64)1 << last_found);
            at = here + last_found;
        }
        u32 *next = starts + count;
        count += (u32)__builtin_popcountll(found);
        for (; found; next += 8)
            for (int i = 0; i < 8; i++) { /* what is written beyond the last one is overwritten later */
                next[i] = here + (u32)__builtin_ctzll(found | (u64)1 << 63);
                found &= found - 1;
            }
    }
    *from = at;
    return count;
}

/* A function for each scheme, so that the compiler leaves out what the others need. */
#if defined(HAVE_AVX2)
#define SPLIT TARGET_AVX2 static
#else
#define SPLIT static
#endif
#define SPLITTER(name, scheme, ...)                                                                                 \
    SPLIT u32 name(const u8 *text, u32 size, const u8 *limit, u32 *at, u32 *starts, u32 room) {                     \
        const Rules rules = {__VA_ARGS__};                                                                          \
        return split_blocks(scheme, &rules, text, size, limit, at, starts, room);                                   \
    }
SPLITTER(split_gpt2, SM_GPT2, BY_GPT2, 0, 0, 0, LETTER)
SPLITTER(split_cl100k, SM_CL100K, BY_LLAMA3, 3, 1, 1, LETTER)
SPLITTER(split_llama3, SM_LLAMA3, BY_LLAMA3, 3, 0, 1, LETTER)
SPLITTER(split_qwen2, SM_QWEN2, BY_LLAMA3, 1, 0, 1, LETTER)
SPLITTER(split_qwen35, SM_QWEN35, BY_LLAMA3, 1, 0, 1, LETTER | MARK)
SPLITTER(split_o200k, SM_O200K, BY_O200K, 3, 0, 1, LETTER)
SPLITTER(split_tekken, SM_TEKKEN, BY_O200K, 1, 0, 0, LETTER)
SPLITTER(split_deepseek, SM_DEEPSEEK, BY_DEEPSEEK, 3, 0, 0, LETTER | MARK)

static u32 (*const SPLITTERS[SM_SCHEMES])(const u8 *, u32, const u8 *, u32 *, u32 *, u32) = {
    split_gpt2, split_cl100k, split_llama3, split_qwen2, split_qwen35, split_o200k, split_tekken, split_deepseek};

#endif

u32 sm_split(int scheme, int simd, const u8 *text, u32 size, const u8 *limit, u32 *at, u32 *starts, u32 room) {
#if defined(HAVE_AVX2) || defined(HAVE_NEON)
    if (simd) return SPLITTERS[scheme](text, size, limit, at, starts, room);
#else
    (void)simd;
    (void)limit;
#endif
    u32 count = 0, here = *at;
    while (here < size && count < room) {
        starts[count++] = here;
        here = (u32)(piece(scheme, text + here, text + size) - text);
    }
    *at = here;
    return count;
}
