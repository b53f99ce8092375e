/* The whole interface of the compiled core. The Python side is __init__.py.
 *
 * Nothing here allocates: every buffer, its size included, comes from the caller. Nothing aborts: a negative
 * result is one of the errors below. No byte is read or written outside of the buffers that are given.
 */
#ifndef SHARDMILL_CORE_H
#define SHARDMILL_CORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SM_API __attribute__((visibility("default")))
#else
#define SM_API
#endif

/* Increased with every change of this header; __init__.py refuses a library of another number. */
#define SM_ABI 1
SM_API int32_t sm_abi(void);

enum {
    SM_ERROR_ARGUMENT = -1, /* offsets out of order or outside of the data, an unknown choice, a pointer that is null */
    SM_ERROR_SPACE = -2,    /* a buffer is smaller than what this call may need */
    SM_ERROR_VOCABULARY = -3 /* a vocabulary that the core cannot use */
};

/* ---- Encoding: pieces.c, merges.c, encode.c ------------------------------------------------------------- */

/* ---- Reading: json.c, utf8.c, scan.c --------------------------------------------------------------------
 *
 * simd: 0 keeps to plain C, which gives the same results; 1 uses vector instructions where the processor has them.
 */

/* 1 if the bytes are UTF-8, as Python's decoder judges it, else 0. */
SM_API int32_t sm_utf8_valid(const uint8_t *data, int64_t n, int32_t simd);

/* How often a byte occurs. */
SM_API int64_t sm_count(const uint8_t *data, int64_t n, uint8_t byte, int32_t simd);

/* Where a separator of `width` bytes stands: from the left, and none inside another. Returns how many there are; the
 * first `most` of them are written. */
SM_API int64_t sm_find(const uint8_t *data, int64_t n, const uint8_t *separator, int64_t width, int64_t *places,
                       int64_t most, int32_t simd);

/* A hash of each row data[offsets[i] .. offsets[i + 1] - gap), of its first 64 KiB, as run/splits.py defines it. */
SM_API int32_t sm_content_hash(const uint8_t *data, int64_t n, const int64_t *offsets, int64_t rows, int64_t gap,
                               uint64_t seed, uint64_t *hashes);

enum { SM_LINE_TAKEN, SM_LINE_BLANK, SM_LINE_LEFT };

/* One field of JSON Lines.
 *
 * The field is a path of `depth` names: names[name_ends[i - 1] .. name_ends[i]) is looked for in the object that is the
 * value of the name before it. For each line: starts[i], where it begins; verdicts[i]; and its text,
 * text[offsets[i] .. offsets[i + 1]), which is empty unless the line was taken. A line is taken if it is an object that
 * Python's json accepts and its field is a string without half a surrogate pair; the text is then what Python gives.
 * Whatever is in any way odd is left, good or bad. So is a last line that lacks its newline.
 *
 * `room` is the size of text, n at the least; `most` that of verdicts, while starts and offsets have one more.
 * Returns the number of lines. */
SM_API int64_t sm_json_lines(const uint8_t *data, int64_t n, const uint8_t *names, const int64_t *name_ends,
                             int64_t depth, uint8_t *text, int64_t room, int64_t *starts, int64_t *offsets,
                             uint8_t *verdicts, int64_t most, int32_t simd);

#endif
