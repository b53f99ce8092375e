/* Vector instructions, where there are any. What uses them has a scalar twin, which works on every machine, gives the same
 * results, and is chosen by `simd` = 0. SM_PLAIN builds what a compiler without extensions builds. */
#ifndef SHARDMILL_VECTORS_H
#define SHARDMILL_VECTORS_H

#if defined(__GNUC__) && !defined(SM_PLAIN)
#define GNU 1
#endif

/* AVX2 is compiled in by functions of their own and chosen at run time; NEON is part of every aarch64. */
#if defined(GNU) && defined(__x86_64__)
#define HAVE_AVX2 1
#define TARGET_AVX2 __attribute__((target("avx2,bmi,bmi2,popcnt")))
#include <immintrin.h>
#elif defined(GNU) && defined(__aarch64__) && defined(__ARM_NEON)
#define HAVE_NEON 1
#include <arm_neon.h>
#endif

/* Whether they are wanted and this processor has those that are used. */
static inline int sm_simd(int wanted) {
#if defined(HAVE_AVX2)
    return wanted && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
#elif defined(HAVE_NEON)
    return wanted != 0;
#else
    (void)wanted;
    return 0;
#endif
}

#endif
