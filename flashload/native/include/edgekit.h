/* The C ABI of edgekit's native core. Compiles as C99 and as C++11.
 *
 * Rules that hold for every function:
 *  - Failure is an ek_status, never a sentinel value, an abort or a C++ exception.
 *  - Returned strings belong to the library, are constant, and live until it is unloaded: never free them.
 *    Variable text goes into a buffer that belongs to the caller, whose size is always passed with it.
 *  - Any thread may call any function at any time unless its comment says otherwise.
 *  - Text is UTF-8 and ends with a NUL, which every size counts.
 */
#ifndef EDGEKIT_H
#define EDGEKIT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#  if defined(EK_BUILDING_CORE)
#    define EK_API __declspec(dllexport)
#  else
#    define EK_API __declspec(dllimport)
#  endif
#elif defined(__GNUC__)
#  define EK_API __attribute__((visibility("default")))
#else
#  define EK_API
#endif

#ifdef __cplusplus
#  define EK_NOEXCEPT noexcept
extern "C" {
#else
#  define EK_NOEXCEPT
#endif

/* Raised by one whenever a caller built against the previous header could misbehave: a changed signature,
 * struct layout or status meaning. New functions and new status codes leave it alone. */
#define EK_ABI_VERSION 1u

/* An integer type of fixed width rather than an enum, whose width the C standard leaves to the compiler. */
typedef int32_t ek_status;

#define EK_OK ((ek_status)0)
#define EK_INVALID_ARGUMENT ((ek_status)1) /* an argument that no call may pass, such as a null buffer */
#define EK_BUFFER_TOO_SMALL ((ek_status)2) /* call again with a larger buffer */

/* The EK_ABI_VERSION that the loaded library was built with. Call it first: when it differs from the header's,
 * nothing else in this header may be called. */
EK_API uint32_t ek_abi_version(void) EK_NOEXCEPT;

/* The release of the library, such as "0.1.0". The library owns the string. */
EK_API const char *ek_version(void) EK_NOEXCEPT;

/* One line of English about a status. An unknown status gets a line too, never NULL. The library owns the string. */
EK_API const char *ek_status_message(ek_status status) EK_NOEXCEPT;

/* Large enough for every feature that a library with this EK_ABI_VERSION was built to report. */
#define EK_CPU_FEATURES_SIZE 256

/* Writes the names of the instruction set extensions that this process may use, separated by single spaces, into
 * `buffer`, which holds `size` bytes and belongs to the caller. A name is written only when the processor has the
 * extension and the operating system saves its registers. Names and their order:
 *   x86-64:  sse4_2 avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_int8
 *   AArch64: neon dotprod i8mm sve
 *   others:  none, an empty string
 * amx_int8 still needs the process to ask Linux for its tile registers (arch_prctl) before the first tile
 * instruction.
 *
 * EK_OK; EK_INVALID_ARGUMENT when `buffer` is null or `size` is 0; EK_BUFFER_TOO_SMALL with an empty string in
 * `buffer` when the names do not fit: a list that is cut short would read like a lesser processor. */
EK_API ek_status ek_cpu_features(char *buffer, size_t size) EK_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* EDGEKIT_H */
