/* The whole interface of the compiled core. The Python side is __init__.py.
 *
 * Nothing here allocates: every buffer, its size included, comes from the caller. Nothing aborts: a negative
 * result is one of the errors below. No byte is read or written outside of the buffers that are given.
 */
#ifndef SHARDMILL_CORE_H
#define SHARDMILL_CORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define SM_API __attribute__((visibility("default")))
#else
#define SM_API
#endif

/* Increased with every change of this header; __init__.py refuses a library of another number. */
#define SM_ABI 1
SM_API int32_t sm_abi(void);

enum {
    SM_ERROR_ARGUMENT = -1, /* offsets out of order or outside of the data, an unknown choice, a pointer that is null */
    SM_ERROR_SPACE = -2,    /* a buffer is smaller than what this call may need */
    SM_ERROR_VOCABULARY = -3 /* a vocabulary that the core cannot use */
};

/* ---- Encoding: pieces.c, merges.c, encode.c ------------------------------------------------------------- */

/* ---- Reading: json.c, utf8.c, scan.c -------------------------------------------------------------------- */

#endif
