/* The core's way through JSON Lines, UTF-8, normal forms, separators and parquet pages, vectors against scalar, in buffers of
 * exactly their size.
 *
 * libFuzzer calls LLVMFuzzerTestOneInput. With -DREPLAY it is a program that reads files made by test_sanitized.py:
 * lines, each with the text that Python's json gives for it, against which the core is compared. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

typedef struct {
    int64_t count;
    uint8_t *text, *verdicts;
    int64_t *starts, *offsets;
} Result;

static void require(int fact, const char *what) {
    if (fact) return;
    fprintf(stderr, "not so: %s\n", what);
    abort();
}

static void *copy(const void *from, size_t n) {
    void *to = malloc(n);
    require(n == 0 || to != NULL, "memory");
    if (n) memcpy(to, from, n);
    return to;
}

static Result parse(const uint8_t *data, int64_t n, const char *names, const int64_t *ends, int64_t depth, int simd) {
    Result r;
    int64_t most = sm_count(data, n, '\n', simd) + (n > 0 && data[n - 1] != '\n');
    r.text = malloc((size_t)n);
    r.verdicts = malloc((size_t)most);
    r.starts = malloc((size_t)(most + 1) * sizeof *r.starts);
    r.offsets = malloc((size_t)(most + 1) * sizeof *r.offsets);
    r.count = sm_json_lines(data, n, (const uint8_t *)names, ends, depth, r.text, n, r.starts, r.offsets, r.verdicts,
                            most, simd);
    require(r.count == most, "every line has a verdict");
    require(r.starts[most] == n, "the last line ends with the block");
    for (int64_t i = 0; i < most; i++) {
        int64_t length = r.offsets[i + 1] - r.offsets[i];
        require(r.verdicts[i] == SM_LINE_TAKEN ? length <= r.starts[i + 1] - r.starts[i] : length == 0, "lengths");
        require(sm_utf8_valid(r.text + r.offsets[i], length, simd), "text is UTF-8");
    }
    return r;
}

static void discard(Result r) {
    free(r.text);
    free(r.verdicts);
    free(r.starts);
    free(r.offsets);
}

static void find(const uint8_t *data, int64_t n, const char *separator, int64_t width) {
    int64_t count = sm_find(data, n, (const uint8_t *)separator, width, NULL, 0, 0);
    size_t size = (size_t)count * sizeof(int64_t);
    int64_t *scalar = malloc(size), *vector = malloc(size);
    sm_find(data, n, (const uint8_t *)separator, width, scalar, count, 0);
    require(sm_find(data, n, (const uint8_t *)separator, width, vector, count, 1) == count, "separators");
    require(count == 0 || memcmp(scalar, vector, size) == 0, "places of separators");
    free(scalar);
    free(vector);
}

/* Pieces of the bytes put together. */
static void pieces(const uint8_t *data, int64_t n) {
    enum { ROWS = 8 };
    int64_t starts[ROWS], lengths[ROWS];
    for (int64_t i = 0; i < ROWS; i++) {
        starts[i] = n > i ? data[i] % 16 : 0;
        lengths[i] = n > i ? data[i] / 16 : 0;
    }
    uint8_t *text = malloc((size_t)(2 * n));
    int64_t made = sm_gather(data, n, starts, lengths, ROWS, text, 2 * n);
    require(made >= 0 || made == SM_ERROR_ARGUMENT || made == SM_ERROR_SPACE, "texts put together");
    free(text);
}

/* The bytes as ids, dealt to two splits: rows from anywhere, in memory of exactly their size. */
static void dealt(const uint8_t *data, int64_t n) {
    enum { ROWS = 8 };
    int64_t starts[ROWS], lengths[ROWS], sizes[2] = {0, 0}, ids = n / 4;
    uint8_t marks[ROWS], second[ROWS];
    for (int64_t i = 0; i < ROWS; i++) {
        uint8_t byte = n > i ? data[i] : 0;
        starts[i] = byte % 16, lengths[i] = byte / 16, marks[i] = byte & 1, second[i] = byte >> 1 & 1;
        sizes[second[i]] += lengths[i] + marks[i];
    }
    for (int way = 0; way < 4; way++) {
        int wide = way & 1;
        size_t width = wide ? 4 : 2;
        void *out = malloc((size_t)(sizes[0] + sizes[1]) * width + 1), *own = copy(data, (size_t)ids * width);
        int32_t made = sm_deal(own, ids, wide, starts, lengths, ROWS, marks, second, 7, way >> 1, out, sizes[0], sizes[0] + sizes[1]);
        require(made == 0 || made == SM_ERROR_ARGUMENT, "ids dealt");
        free(own);
        free(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *given, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *given, size_t size) {
    static const int64_t ENDS[3][2] = {{4, 0}, {1, 2}, {0, 0}};
    static const int64_t DEPTHS[3] = {1, 2, 1};
    static const char *NAMES[3] = {"text", "ab", ""};
    int64_t n = (int64_t)size;
    uint8_t *data = copy(given, size);
    require(sm_utf8_valid(data, n, 0) == sm_utf8_valid(data, n, 1), "UTF-8");
    int64_t bounds[3] = {0, n / 2, n};
    uint8_t odd[2];
    int64_t count_odd = sm_not_normal(data, n, bounds, 2, 0, odd);
    require(count_odd == odd[0] + odd[1], "rows that are not normal");
    for (int i = 0; i < 3; i++) {
        Result scalar = parse(data, n, NAMES[i], ENDS[i], DEPTHS[i], 0), vector = parse(data, n, NAMES[i], ENDS[i], DEPTHS[i], 1);
        size_t count = (size_t)scalar.count, bytes = (size_t)scalar.offsets[count];
        require(count == 0 || memcmp(scalar.verdicts, vector.verdicts, count) == 0, "verdicts");
        require(memcmp(scalar.starts, vector.starts, (count + 1) * sizeof(int64_t)) == 0, "starts");
        require(memcmp(scalar.offsets, vector.offsets, (count + 1) * sizeof(int64_t)) == 0, "offsets");
        require(bytes == 0 || memcmp(scalar.text, vector.text, bytes) == 0, "text");
        discard(scalar);
        discard(vector);
    }
    find(data, n, "\n", 1);
    find(data, n, "\"}\n", 3);
    find(data, n, "aa", 2);
    int64_t offsets[4] = {0, n / 3, n / 2, n};
    uint64_t hashes[3];
    require(sm_content_hash(data, n, offsets, 3, 0, 7, hashes) == 0, "hash");
    int64_t ends[2] = {1, 3}, plain[2 * SM_ODD_KINDS] = {0}, fast[2 * SM_ODD_KINDS] = {0};
    require(sm_odd(data, n, offsets, 3, 0, ends, 2, plain, 0) == sm_odd(data, n, offsets, 3, 0, ends, 2, fast, 1), "odd");
    require(memcmp(plain, fast, sizeof plain) == 0, "counts of what is odd");
    pieces(data, n);
    dealt(data, n);
    free(data);
    return 0;
}

#ifdef REPLAY
static int64_t number(FILE *file) {
    int64_t value;
    return fread(&value, sizeof value, 1, file) == 1 ? value : -2;
}

static uint8_t *bytes(FILE *file, int64_t n) {
    uint8_t *out = malloc((size_t)n);
    require(fread(out, 1, (size_t)n, file) == (size_t)n, "a file of whole entries");
    return out;
}

int main(int count, char **arguments) {
    int64_t lines = 0, taken = 0, end = 4;
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        require(file != NULL, "the file is there");
        for (int64_t n; (n = number(file)) >= 0; lines++) {
            uint8_t *line = bytes(file, n);
            int64_t wanted = number(file);
            uint8_t *text = bytes(file, wanted < 0 ? 0 : wanted);
            LLVMFuzzerTestOneInput(line, (size_t)n);
            Result got = parse(line, n, "text", &end, 1, 1);
            if (got.verdicts[0] == SM_LINE_TAKEN) {
                taken++;
                require(got.offsets[1] == wanted, "the length of what Python gives");
                require(wanted == 0 || memcmp(got.text, text, (size_t)wanted) == 0, "what Python gives");
            }
            discard(got);
            free(line);
            free(text);
        }
        fclose(file);
    }
    printf("%lld lines, %lld taken\n", (long long)lines, (long long)taken);
    return 0;
}
#endif
