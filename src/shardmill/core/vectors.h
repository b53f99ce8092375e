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
#include <cpuid.h>
#include <immintrin.h>
#include <stdatomic.h>
#elif defined(GNU) && defined(__aarch64__) && defined(__ARM_NEON)
#define HAVE_NEON 1
#include <arm_neon.h>
#endif

#if defined(HAVE_AVX2)
/* Whether the processor has what TARGET_AVX2 names, and the system saves its registers. `__builtin_cpu_supports` says the
 * same, and does not link with every compiler. */
static inline int sm_has_avx2(void) {
    unsigned a, b, c, d, saved, unused;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!(c & bit_OSXSAVE) || !(c & bit_AVX) || !(c & bit_POPCNT)) return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(unused) : "c"(0));
    if ((saved & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    return (b & bit_AVX2) && (b & bit_BMI) && (b & bit_BMI2);
}
#endif

/* Whether they are wanted and this processor has those that are used. */
static inline int sm_simd(int wanted) {
#if defined(HAVE_AVX2)
    /* Asked once, because a virtual machine takes microseconds to answer: 0 unknown, 1 no, 2 yes. */
    static atomic_int known;
    int found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found) {
        found = 1 + sm_has_avx2();
        atomic_store_explicit(&known, found, memory_order_relaxed);
    }
    return wanted && found == 2;
#elif defined(HAVE_NEON)
    return wanted != 0;
#else
    (void)wanted;
    return 0;
#endif
}

#endif
