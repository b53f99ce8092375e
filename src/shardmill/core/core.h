/* The whole interface of the compiled core. The Python side is __init__.py.
 *
 * Nothing here allocates: every buffer, its size included, comes from the caller. Nothing aborts: a negative
 * result is one of the errors below. No byte is read or written outside of the buffers that are given.
 */
#ifndef SHARDMILL_CORE_H
#define SHARDMILL_CORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define SM_API __declspec(dllexport)
#elif defined(__GNUC__)
#define SM_API __attribute__((visibility("default")))
#else
#define SM_API
#endif

/* Increased with every change of this header; __init__.py refuses a library of another number. */
#define SM_ABI 11
SM_API int32_t sm_abi(void);

enum {
    SM_ERROR_ARGUMENT = -1, /* offsets out of order or outside of the data, an unknown choice, a pointer that is null */
    SM_ERROR_SPACE = -2,    /* a buffer is smaller than what this call may need */
    SM_ERROR_VOCABULARY = -3, /* a vocabulary that the core cannot use: a byte without a token, too long, too many */
    SM_ERROR_STITCH = -4,    /* a piece of text longer than a window, whose windows cannot be joined */
    SM_ERROR_READING = -5    /* the system refused to read a file: errno says why */
};

/* ---- Encoding: model.c, pieces.c, merges.c, encode.c, normal.c ---------------------------------------------------------
 *
 * A model holds the tables of one tokenizer: immutable, shared by all threads. An encoder holds the cache and the
 * working space of one thread, and its size is fixed when it is made. Both live in buffers that the caller
 * allocates, aligned to 64 bytes, and keeps until they are no longer used; there is nothing else to free.
 */
typedef struct sm_model sm_model;
typedef struct sm_encoder sm_encoder;

/* How text is split into pieces. */
enum {
    SM_GPT2,
    SM_CL100K,
    SM_LLAMA3,
    SM_QWEN2,
    SM_QWEN35,
    SM_O200K,
    SM_TEKKEN,
    SM_DEEPSEEK,
    SM_SCHEMES
};

/* Token i is text[offsets[i] : offsets[i+1]]; empty if there is no token i. merges: NULL if any two neighbours merge
 * that are together a token, the lowest id first; or rows of (left, right, result), which are merged in this
 * order. whole_first: a piece that is a token is that token, whatever merging would give.
 * Returns the bytes that the model needs, and in *scratch those that only building it needs. */
SM_API int64_t sm_model_bytes(const uint8_t *text, const int64_t *offsets, int64_t count, int64_t merge_count,
                              int64_t *scratch);
SM_API int64_t sm_model_build(void *memory, int64_t bytes, void *scratch, int64_t scratch_bytes, const uint8_t *text,
                              const int64_t *offsets, int64_t count, const uint32_t *merges, int64_t merge_count,
                              int32_t scheme, int32_t whole_first);

/* The tokens of a rank file, as sm_model_build takes them: each line has the bytes in base64, a space, and a rank that is
 * larger than the one before. `text` has room for n bytes, `offsets` for most + 1. Returns how many ids there are, or
 * SM_ERROR_VOCABULARY for any other file. */
SM_API int64_t sm_ranks(const uint8_t *file, int64_t n, uint8_t *text, int64_t *offsets, int64_t most);

/* An encoder of at most `bytes`, with as large a power of two of slots as that allows; sm_encoder_least() is the least.
 * wide: its ids are uint32_t, else uint16_t. simd: 0 for plain C alone, 1 for what this processor has.
 * Returns the bytes that it takes. */
SM_API int64_t sm_encoder_least(void);
SM_API int64_t sm_encoder_build(void *memory, int64_t bytes, const sm_model *model, int32_t wide, int32_t simd);

/* Row i is data[offsets[i] : offsets[i+1] - gap], valid UTF-8 of less than 2 GiB. eot: -1, or an id that stands after
 * each row, or before it if `before`. counts[i]: ids of row i, EOT included.
 * Encodes rows while `capacity` ids are certain to be enough: SM_ROOM more than the bytes of the row, after the ids
 * that are written already. Returns how many ids were written, and in *done how many rows. */
enum { SM_ROOM = 16 };
SM_API int64_t sm_encode(sm_encoder *encoder, const uint8_t *data, int64_t data_bytes, const int64_t *offsets,
                         int64_t rows, int64_t gap, int64_t eot, int32_t before, void *ids, int64_t capacity,
                         int64_t *counts, int64_t *done);

/* A text that comes in parts, of any length, in memory for one part. text[0 .. n) is valid UTF-8, less than 2 GiB, and begins where
 * the certain bytes of the call before ended; `last` if no text follows. *state is 0 for the first part, and what the call before left
 * there for the next. follows: what ends the white space at the end of the text. `ids` has room for n + SM_ROOM.
 * Returns how many ids were written, and in *certain of how many bytes they are: the others depend on what follows. If *state
 * is 0 then, the rest is encoded as a text of its own would be. */
enum { SM_UNKNOWN, SM_LINE_FOLLOWS, SM_OTHER_FOLLOWS, SM_END_FOLLOWS };
SM_API int64_t sm_encode_open(sm_encoder *encoder, const uint8_t *text, int64_t n, int32_t last, int32_t follows, int32_t *state,
                              void *ids, int64_t capacity, int64_t *certain);

/* flags[i]: 0 if row i (as above) is certainly in Unicode's normal form C, of the release that normal_tables.h was made from;
 * 1 if it may not be. Returns how many of them are 1. */
SM_API int64_t sm_not_normal(const uint8_t *data, int64_t n, const int64_t *offsets, int64_t rows, int64_t gap, uint8_t *flags);

/* Ids of documents, dealt to two splits with EOT in place: deal.c. Row i is ids[starts[i] .. starts[i] + lengths[i]), of n ids
 * of uint32_t if `wide`, else uint16_t. The rows with second[i] go to out[border .. room), the others to out[0 .. border),
 * in their order; where marks[i], `eot` is added after the row, or before it if `before`. All of `out` is filled. */
SM_API int32_t sm_deal(const void *ids, int64_t n, int32_t wide, const int64_t *starts, const int64_t *lengths, int64_t rows,
                       const uint8_t *marks, const uint8_t *second, uint32_t eot, int32_t before, void *out, int64_t border,
                       int64_t room);

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

/* A hash of each row data[offsets[i] .. offsets[i + 1] - gap), of its first 64 KiB: run/splits.py. */
SM_API int32_t sm_content_hash(const uint8_t *data, int64_t n, const int64_t *offsets, int64_t rows, int64_t gap,
                               uint64_t seed, uint64_t *hashes);

/* What text seldom holds: control characters (all but tab, line ends, form feed, escape and the separators of ASCII), the
 * special tokens of well-known tokenizers as text, and the record separator of ASCII. A row that ends inside such a
 * token, at a place where text may be cut, counts as one that holds it, and the next row does not.
 * Rows are as in sm_encode. counts[SM_ODD_KINDS * g + kind]: in the rows before ends[g] that are in no group before g.
 * Returns how many were found, or SM_ERROR_ARGUMENT. */
enum { SM_CONTROL, SM_ENDOFTEXT, SM_END_OF_TEXT, SM_IM_END, SM_END_OF_SENTENCE, SM_RECORD_SEPARATOR, SM_ODD_KINDS };
SM_API int64_t sm_odd(const uint8_t *data, int64_t n, const int64_t *offsets, int64_t rows, int64_t gap,
                      const int64_t *ends, int64_t groups, int64_t *counts, int32_t simd);

enum { SM_LINE_TAKEN, SM_LINE_BLANK, SM_LINE_LEFT };

/* One field of JSON Lines.
 *
 * The field is a path of `depth` names: names[name_ends[i - 1] .. name_ends[i]) is looked for in the object that is the
 * value of the name before it. For each line: starts[i], where it begins; verdicts[i]; and its text,
 * text[offsets[i] .. offsets[i + 1]), which is empty unless the line was taken. A line is taken if it is an object that
 * Python's json accepts and its field is a string without half a surrogate pair; the text is then what Python gives.
 * Any unusual line, valid or not, is left. So is a last line that lacks its newline.
 *
 * `room` is the size of text, n at the least; `most` that of verdicts, while starts and offsets have one more.
 * Returns the number of lines. */
SM_API int64_t sm_json_lines(const uint8_t *data, int64_t n, const uint8_t *names, const int64_t *name_ends,
                             int64_t depth, uint8_t *text, int64_t room, int64_t *starts, int64_t *offsets,
                             uint8_t *verdicts, int64_t most, int32_t simd);

/* ---- Texts put together: pages.c -------------------------------------------------------------------------- */

/* Puts texts together: row i is data[starts[i] .. starts[i] + lengths[i]). Returns where the last ends in `out`, or
 * SM_ERROR_SPACE if `room` is too small. */
SM_API int64_t sm_gather(const uint8_t *data, int64_t n, const int64_t *starts, const int64_t *lengths, int64_t rows,
                         uint8_t *out, int64_t room);

/* ---- Many small reads: files.c ----------------------------------------------------------------------------- */

/* Reads parts of an open file: lengths[i] bytes from starts[i] on become those from out[places[i]] on. Returns `rows`,
 * or the number of the first part that the file is too short for. */
SM_API int64_t sm_read_parts(int32_t file, const int64_t *starts, const int64_t *lengths, const int64_t *places,
                             int64_t rows, uint8_t *out, int64_t room);

#endif
