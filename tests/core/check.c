/* Encodes a case file with and without SIMD, as 16 and as 32 bits, and compares. */
#include "cases.h"

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
