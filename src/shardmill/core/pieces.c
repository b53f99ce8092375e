/* From text to pieces, as the split pattern of each scheme has them.
 *
 * The first half is plain: one character after the other, one function for each family of patterns. It defines what
 * a piece is. No pattern looks behind, so a piece depends only on the text from its beginning on.
 */
#include "model.h"
#include "unicode_tables.h"

/* ---- one piece after the other */

u32 sm_class(u32 code) { return code < 0x110000 ? CLASSES[CLASS_BLOCK[code >> 7]][code & 127] : 0; }

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
/* Behind the characters from p on whose class is in `set`, or whose class is not in it if `other`. */
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

/* White space from p on: up to the last line end in it if there is one and the pattern asks for that, else without the
 * last character if something else follows. */
INLINE const u8 *white_piece(const u8 *p, const u8 *end, int by_lines, int whole_at_end) {
    const u8 *at = p, *line = NULL, *last = p;
    while (at < end) {
        Char c = char_at(at, end);
        if (!(c.class & WHITE)) break;
        last = at;
        at += c.length;
        if (c.class & NEWLINE) line = at;
    }
    if (at == end && whole_at_end) return at;
    if (by_lines && line) return line;
    return at == end || last == p ? at : last;
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
    return white_piece(p, end, 0, 0);
}

INLINE const u8 *digits(const u8 *p, const u8 *end, u32 most) {
    for (; most && p < end; most--) {
        Char c = char_at(p, end);
        if (!(c.class & NUMBER)) break;
        p += c.length;
    }
    return p;
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
    u32 not_other = letter | NUMBER | WHITE;
    if (*p == ' ' && !(next.class & not_other)) c = next, at += next.length;
    if (!(c.class & WHITE)) {
        at = run(at, end, not_other, 1);
        while (at < end && (*at == '\n' || *at == '\r')) at++;
        return at;
    }
    return white_piece(p, end, 1, whole_at_end);
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
    u32 not_other = LETTER | NUMBER | WHITE;
    if (*p == ' ' && !(next.class & not_other)) c = next, at += next.length;
    if (!(c.class & WHITE)) {
        at = run(at, end, not_other, 1);
        while (at < end && (*at == '\n' || *at == '\r' || *at == '/')) at++;
        return at;
    }
    return white_piece(p, end, 1, 0);
}

static const u8 *piece(int scheme, const u8 *p, const u8 *end) {
    switch (scheme) {
    case SM_GPT2: return piece_gpt2(p, end);
    case SM_CL100K: return piece_llama3(p, end, LETTER, 3, 1);
    case SM_LLAMA3: return piece_llama3(p, end, LETTER, 3, 0);
    case SM_QWEN2: return piece_llama3(p, end, LETTER, 1, 0);
    case SM_QWEN35: return piece_llama3(p, end, LETTER | MARK, 1, 0);
    case SM_O200K: return piece_o200k(p, end, 3, 1);
    default: return piece_o200k(p, end, 1, 0);
    }
}

u32 sm_split(int scheme, int simd, const u8 *text, u32 size, const u8 *limit, u32 *at, u32 *starts, u32 room) {
    u32 count = 0, here = *at;
    (void)simd;
    (void)limit;
    while (here < size && count < room) {
        starts[count++] = here;
        here = (u32)(piece(scheme, text + here, text + size) - text);
    }
    *at = here;
    return count;
}
