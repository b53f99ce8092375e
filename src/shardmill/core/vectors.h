/* Vector instructions, where there are any. What uses them has a scalar twin beside it: -DSM_SCALAR builds only that,
 * for processors that have none, for the reader, and for tests that compare the two. */
#ifndef SHARDMILL_VECTORS_H
#define SHARDMILL_VECTORS_H

#if defined(SM_SCALAR)
#elif defined(__x86_64__) && defined(__GNUC__)
#define SM_AVX2 1
#define SM_FOR_AVX2 __attribute__((target("avx2")))
#include <immintrin.h>
/* Asked at run time: not every x86-64 processor has it. */
#define sm_has_avx2() __builtin_cpu_supports("avx2")
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define SM_NEON 1 /* every aarch64 processor has it */
#include <arm_neon.h>
#endif

#endif
