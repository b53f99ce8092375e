/* Encodes a case file with and without SIMD, as 16 and as 32 bits, and compares. */
#include "cases.h"

/* Encodes a row in parts, each in memory of exactly its size; the ids must be those of the whole. */
static void check_in_parts(const Case *c, sm_encoder *encoder, int64_t row, int64_t first_id, int64_t size) {
    int32_t state = 0;
    int64_t at = c->offsets[row], end = c->offsets[row + 1], have = size, k = first_id, certain = 0;
    for (int last = 0; !last; have = certain ? size : have * 2) {
        int64_t n = have < end - at ? have : end - at;
        last = n == end - at;
        while (!last && n && (c->data[at + n] & 0xC0) == 0x80) n--;
        uint8_t *text = malloc(n ? (size_t)n : 1);
        uint32_t *ids = malloc(4 * (size_t)(n + SM_ROOM));
        memcpy(text, c->data + at, (size_t)n);
        int64_t count = sm_encode_open(encoder, text, n, last, SM_UNKNOWN, &state, ids, n + SM_ROOM, &certain);
        if (count < 0 || memcmp(ids, c->ids + k, 4 * (size_t)count)) fail("other ids in parts");
        at += certain, k += count;
        free(text);
        free(ids);
    }
    if (at != end || k != first_id + c->counts[row]) fail("other counts in parts");
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        Case c = read_case(argv[i]);
        sm_model *model = build_model(&c, (int32_t)c.scheme);
        for (int way = 0; way < 4; way++) {
            int wide = way & 1, simd = way >> 1;
            if (!wide && c.token_count > 0x10000) continue;
            sm_encoder *encoder = build_encoder(model, 0, wide, simd);
            int64_t capacity = c.data_bytes + c.rows + SM_ROOM, done, *counts = malloc(8 * (size_t)c.rows + 1);
            void *ids = malloc((size_t)capacity * (wide ? 4 : 2));
            for (int again = 0; again < 2; again++) { /* the second time from what the cache holds */
                int64_t n = sm_encode(encoder, c.data, c.data_bytes, c.offsets, c.rows, 0, -1, 0, ids, capacity, counts, &done);
                if (n != c.id_count || done != c.rows || memcmp(counts, c.counts, 8 * (size_t)c.rows)) fail("other counts");
                for (int64_t k = 0; k < n; k++)
                    if ((wide ? ((uint32_t *)ids)[k] : ((uint16_t *)ids)[k]) != c.ids[k]) fail("other ids");
            }
            for (int64_t row = 0, k = 0; wide && row < c.rows; k += c.counts[row++])
                for (int64_t size = 1100; size < 3000; size += 700) check_in_parts(&c, encoder, row, k, size);
            free(ids);
            free(counts);
            free(encoder);
        }
        printf("%s: %lld ids\n", argv[i], (long long)c.id_count);
        free(model);
        free(c.token_offsets), free(c.tokens), free(c.merges), free(c.offsets), free(c.data), free(c.counts), free(c.ids);
    }
    return 0;
}
