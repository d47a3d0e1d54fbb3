// A program whose methods share their buffers, as those of a language model do. ExecuTorch's Swift
// API has no way to ask for that, so this uses its C++ API.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct program;

/// A program in a file that is mapped into memory; the functions below give an error of ExecuTorch,
/// or 0.
struct program *_Nonnull program_open(const char *_Nonnull path);
void program_close(struct program *_Nonnull program);
int32_t program_load(struct program *_Nonnull program);
int32_t program_load_method(struct program *_Nonnull program, const char *_Nonnull method);

/// Takes tokens of which the first is at `position`; the logits of the last stay until the next call.
int32_t program_take(
    struct program *_Nonnull program, const char *_Nonnull method,
    const int64_t *_Nonnull tokens, int32_t count, int64_t position,
    const float *_Nullable *_Nonnull logits, size_t *_Nonnull vocabulary);

#ifdef __cplusplus
}
#endif
