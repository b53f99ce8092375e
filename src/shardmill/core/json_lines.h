/* The parser of JSON Lines. json.c includes this once for each kind of vector instructions: WITH(name) adds the kind to
   the name of a function, and TARGET is what the compiler has to know of it.

   Nothing here looks for the end of the block: every line ends with a newline, no token holds one, and each step stops
   at a byte that is not the one it wants. So no byte behind the newline is read before the line is done. Only
   skip_plain and copy_plain, which look at many bytes at once, take the end of the block as an argument. */

/* p stands behind the opening quote. Returns the place behind the closing one, or null. */
TARGET static const uint8_t *WITH(skip_string)(const uint8_t *p, const Block *block, Seen *seen) {
    for (;;) {
        p = WITH(skip_plain)(p, block->end, seen);
        if (*p == '"') return p + 1;
        if (*p != '\\') return NULL;
        seen->escape = 1;
        if (p[1] == 'u') {
            if (hex4(p + 2) < 0) return NULL;
            p += 6;
        } else {
            if (!ESCAPED[p[1]]) return NULL;
            p += 2;
        }
    }
}

/* The same; what the string says is written to *out, which moves behind it. */
TARGET static const uint8_t *WITH(copy_string)(const uint8_t *p, const Block *block, uint8_t **out, Seen *seen) {
    uint8_t *o = *out;
    for (;;) {
        p = WITH(copy_plain)(p, block->end, &o, seen);
        if (*p == '"') break;
        if (*p != '\\') return NULL;
        if (p[1] == 'u') {
            if (!(p = unescape(p, &o))) return NULL;
        } else {
            if (!(*o++ = ESCAPED[p[1]])) return NULL;
            p += 2;
        }
    }
    *out = o;
    return p + 1;
}

/* Behind any value, or null. */
TARGET static const uint8_t *WITH(skip_value)(const uint8_t *p, const Block *block, Seen *seen) {
    uint64_t objects = 0; /* a bit for each open bracket, the innermost lowest: it is an object's */
    int depth = 0;
    for (;;) {
        int key = 0;
        if (*p == '{' || *p == '[') {
            if (depth == MOST_NESTED) return NULL;
            key = *p == '{';
            p = skip_space(p + 1);
            if (*p == (key ? '}' : ']')) {
                p++;
                key = 0;
            } else {
                objects = objects << 1 | (uint64_t)key;
                depth++;
                if (!key) continue;
            }
        } else {
            p = *p == '"' ? WITH(skip_string)(p + 1, block, seen) : skip_scalar(p);
            if (!p) return NULL;
        }
        while (!key) { /* behind a value */
            if (depth == 0) return p;
            p = skip_space(p);
            if (*p == ',') {
                p = skip_space(p + 1);
                key = objects & 1;
                break;
            }
            if (*p != (objects & 1 ? '}' : ']')) return NULL;
            p++;
            objects >>= 1;
            depth--;
        }
        if (key) {
            if (*p != '"' || !(p = WITH(skip_string)(p + 1, block, seen))) return NULL;
            p = skip_space(p);
            if (*p != ':') return NULL;
            p = skip_space(p + 1);
        }
    }
}

/* One line from p on. Returns where its newline stands if it was taken, or null. */
TARGET static const uint8_t *WITH(take_line)(const uint8_t *p, const Block *block, uint8_t **out) {
    const uint8_t *line = p;
    Seen seen = {0, 0};
    int64_t at = 0;    /* which name of the path is looked for in the object we are in */
    int64_t found = 0; /* names that were found */
    if (*p != '{') return NULL;
    p = skip_space(p + 1);
    for (;;) {
        if (*p != '"') return NULL;
        const uint8_t *key = p + 1;
        seen.escape = 0;
        if (!(p = WITH(skip_string)(key, block, &seen)) || seen.escape) return NULL; /* it may be ours, escaped */
        const uint8_t *name = block->names + (at ? block->name_ends[at - 1] : 0);
        int64_t width = block->names + block->name_ends[at] - name;
        int ours = p - 1 - key == width && memcmp(key, name, (size_t)width) == 0;
        p = skip_space(p);
        if (*p != ':') return NULL;
        p = skip_space(p + 1);
        if (ours) {
            if (found > at) return NULL; /* twice: the last would count */
            found = at + 1;
            if (found < block->depth) {
                if (*p != '{') return NULL;
                p = skip_space(p + 1);
                at++;
                continue;
            }
            if (*p != '"' || !(p = WITH(copy_string)(p + 1, block, out, &seen))) return NULL;
        } else if (!(p = WITH(skip_value)(p, block, &seen))) {
            return NULL;
        }
        for (;;) {
            p = skip_space(p);
            if (*p != '}') break;
            p++;
            if (at-- == 0) {
                p = skip_space(p);
                if (*p != '\n' || found < block->depth) return NULL;
                return !seen.high || sm_utf8_valid(line, p - line, block->simd) ? p : NULL;
            }
        }
        if (*p != ',') return NULL;
        p = skip_space(p + 1);
    }
}

TARGET static int64_t WITH(take_lines)(const Block *block, const Lines *lines) {
    const uint8_t *p = block->data;
    uint8_t *out = lines->text;
    int64_t i = 0;
    while (p < block->end) {
        if (i == lines->most) return SM_ERROR_SPACE;
        uint8_t *from = out;
        lines->starts[i] = p - block->data;
        lines->offsets[i] = out - lines->text;
        const uint8_t *first = skip_space(p), *stop;
        uint8_t verdict = SM_LINE_TAKEN;
        if (*first == '\n') {
            stop = first;
            verdict = SM_LINE_BLANK;
        } else if (!(stop = WITH(take_line)(first, block, &out))) {
            out = from;
            verdict = SM_LINE_LEFT;
            stop = memchr(first, '\n', (size_t)(block->end - first));
        }
        lines->verdicts[i++] = verdict;
        p = stop + 1;
    }
    lines->starts[i] = p - block->data;
    lines->offsets[i] = out - lines->text;
    return i;
}
