/* libFuzzer: any bytes, under every scheme. With and without SIMD the ids are the same, and they spell the bytes. */
#include "cases.h"

static Case vocabulary;
static sm_encoder *encoders[SM_SCHEMES][2];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const char *path = getenv("CASE_FILE");
    if (!path) fail("CASE_FILE must name a case file");
    vocabulary = read_case(path);
    for (int scheme = 0; scheme < SM_SCHEMES; scheme++) {
        sm_model *model = build_model(&vocabulary, scheme);
        for (int simd = 0; simd < 2; simd++) encoders[scheme][simd] = build_encoder(model, 0, 1, simd);
    }
    return 0;
}
/* The text in two parts: the ids that are certain spell their bytes, and with the rest all of them. */
static void encode_in_parts(sm_encoder *encoder, const uint8_t *text, int64_t size, uint32_t *ids, int64_t capacity) {
    int32_t state = 0;
    int64_t at = 0, certain = 0, ends[2] = {size / 2, size};
    for (int part = 0; part < 2; part++, at += certain) {
        int64_t n = ends[part] - at, spelled = at;
        int64_t count = sm_encode_open(encoder, text + at, n, part, (int32_t)(size & 3), &state, ids, capacity, &certain);
        if (count < 0 || certain < 0 || certain > n || (part && certain < n)) abort();
        for (int64_t i = 0; i < count; i++) {
            const int64_t *token = vocabulary.token_offsets + ids[i];
            if (token[1] - token[0] > size - spelled ||
                memcmp(text + spelled, vocabulary.tokens + token[0], (size_t)(token[1] - token[0])))
                abort();
            spelled += token[1] - token[0];
        }
        if (spelled != at + certain) abort();
    }
}
int LLVMFuzzerTestOneInput(const uint8_t *text, size_t size) {
    int64_t offsets[4] = {0, (int64_t)(size / 3), (int64_t)(size / 2), (int64_t)size}, counts[2][3], done;
    int64_t capacity = (int64_t)size + 3 + SM_ROOM;
    uint32_t *ids[2] = {malloc((size_t)capacity * 4), malloc((size_t)capacity * 4)};
    for (int scheme = 0; scheme < SM_SCHEMES; scheme++) {
        int64_t n[2];
        for (int simd = 0; simd < 2; simd++)
            n[simd] = sm_encode(encoders[scheme][simd], text, (int64_t)size, offsets, 3, 0, -1, 0, ids[simd], capacity,
                                counts[simd], &done);
        if (n[0] < 0 || n[0] != n[1] || memcmp(ids[0], ids[1], (size_t)n[0] * 4) || memcmp(counts[0], counts[1], sizeof counts[0]))
            abort();
        size_t at = 0;
        for (int64_t i = 0; i < n[0]; i++) {
            const int64_t *token = vocabulary.token_offsets + ids[0][i];
            size_t length = (size_t)(token[1] - token[0]);
            if (length > size - at || memcmp(text + at, vocabulary.tokens + token[0], length)) abort();
            at += length;
        }
        if (at != size) abort();
        encode_in_parts(encoders[scheme][size & 1], text, (int64_t)size, ids[1], capacity);
    }
    free(ids[0]);
    free(ids[1]);

    /* The same bytes as a rank file: what is taken has its tokens in order. */
    enum { MOST = 8 };
    int64_t ranks[MOST + 1];
    uint8_t *tokens = malloc(size ? size : 1);
    int64_t count = sm_ranks(text, (int64_t)size, tokens, ranks, MOST);
    if (count > MOST) abort();
    for (int64_t i = 0; i < count; i++)
        if (ranks[i] < 0 || ranks[i] > ranks[i + 1] || ranks[i + 1] > (int64_t)size) abort();
    free(tokens);
    return 0;
}
