/* Vector instructions for reading, where there are any. What uses them has a scalar twin beside it, which works on
 * every machine, and which `simd` = 0 chooses. */
#ifndef SHARDMILL_VECTORS_H
#define SHARDMILL_VECTORS_H

#if defined(__x86_64__) && defined(__GNUC__)
#define SM_AVX2 1
#define SM_FOR_AVX2 __attribute__((target("avx2")))
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define SM_NEON 1
#include <arm_neon.h>
#endif

/* Whether to use them: not every x86-64 processor has AVX2, but every aarch64 has NEON. */
static inline int vectors(int32_t simd) {
#if SM_AVX2
    return simd && __builtin_cpu_supports("avx2");
#else
    return simd != 0;
#endif
}

#endif
