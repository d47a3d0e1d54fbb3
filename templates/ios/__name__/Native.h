// What Swift cannot ask ExecuTorch or the system itself.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Sets the number of threads in ExecuTorch's pool (0 leaves it) and gives the number in use.
uint32_t native_threads(uint32_t number);

/// Memory that counts against the app's limit; 0 where the system does not say.
struct native_memory_bytes {
  uint64_t now_bytes, peak_bytes;
};
struct native_memory_bytes native_memory(void);

#ifdef __cplusplus
}
#endif
