// ExecuTorch's thread pool. The wheel exports it without its header. These functions are called
// here; none is virtual, so the layout of the class does not matter.
#pragma once

#include <cstddef>
#include <cstdint>

#include <executorch/runtime/core/function_ref.h>

namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t num_threads);
  void run(executorch::runtime::FunctionRef<void(size_t)> work, size_t range);
};
ThreadPool* get_threadpool();
} // namespace executorch::extension::threadpool
