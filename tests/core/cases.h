/* Reads a file of tests/core/case_files.py: a vocabulary, rows of text, and the ids that the reference gives. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct {
    int64_t scheme, token_count, token_bytes, merge_count, whole_first, rows, data_bytes, id_count;
    int64_t *token_offsets, *offsets, *counts;
    uint32_t *merges, *ids;
    uint8_t *tokens, *data;
} Case;

static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}
/* Exactly so many bytes, so that a sanitizer sees one too many. */
static void *part(FILE *file, int64_t bytes) {
    void *memory = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (!memory || (bytes > 0 && fread(memory, 1, (size_t)bytes, file) != (size_t)bytes)) fail("the case file is too short");
    return memory;
}
static Case read_case(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) fail("the case file cannot be opened");
    Case c;
    if (fread(&c.scheme, 8, 8, file) != 8) fail("the case file is too short");
    c.token_offsets = part(file, 8 * (c.token_count + 1));
    c.tokens = part(file, c.token_bytes);
    c.merges = c.merge_count < 0 ? NULL : part(file, 12 * c.merge_count);
    c.offsets = part(file, 8 * (c.rows + 1));
    c.data = part(file, c.data_bytes);
    c.counts = part(file, 8 * c.rows);
    c.ids = part(file, 4 * c.id_count);
    fclose(file);
    return c;
}
static void *aligned(int64_t bytes) {
    void *memory = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
    if (!memory) fail("no memory");
    return memory;
}
static sm_model *build_model(const Case *c, int32_t scheme) {
    int64_t scratch_bytes;
    int64_t bytes = sm_model_bytes(c->tokens, c->token_offsets, c->token_count, c->merge_count, &scratch_bytes);
    if (bytes < 0) fail("sm_model_bytes");
    void *memory = aligned(bytes), *scratch = aligned(scratch_bytes);
    if (sm_model_build(memory, bytes, scratch, scratch_bytes, c->tokens, c->token_offsets, c->token_count, c->merges,
                       c->merge_count, scheme, (int32_t)c->whole_first) < 0)
        fail("sm_model_build");
    free(scratch);
    return memory;
}
static sm_encoder *build_encoder(const sm_model *model, int64_t bytes, int wide, int simd) {
    if (bytes < sm_encoder_least()) bytes = sm_encoder_least();
    void *memory = aligned(bytes);
    if (sm_encoder_build(memory, bytes, model, wide, simd) < 0) fail("sm_encoder_build");
    return memory;
}
