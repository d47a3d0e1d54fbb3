/* musl's <assert.h>, with the declaration of __assert_fail that glibc has.
 *
 * PyTorch's headers declare the function too, as glibc does: with an unsigned line, and noexcept. In
 * musl the line is an int, and a compiler takes only one of the two. Both are passed alike, so that
 * the library's function serves either. There is no include guard: <assert.h> may be included again
 * with another NDEBUG.
 */
#pragma GCC system_header
#define __assert_fail etdeploy_other_assert_fail
#include_next <assert.h>
#undef __assert_fail

#ifdef __cplusplus
extern "C" void __assert_fail(const char *assertion, const char *file, unsigned int line,
                              const char *function) noexcept __attribute__((__noreturn__));
#else
void __assert_fail(const char *assertion, const char *file, unsigned int line,
                   const char *function) __attribute__((__noreturn__));
#endif
