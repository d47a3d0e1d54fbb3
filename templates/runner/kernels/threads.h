// Work of a kernel on the threads of ExecuTorch's pool, where the runner has it, and their memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>

#ifdef HAS_threadpool
#include "../threadpool.h"
#endif

namespace etdeploy {

inline size_t thread_count() {
#ifdef HAS_threadpool
  auto* pool = executorch::extension::threadpool::get_threadpool();
  return pool ? pool->get_thread_count() : 1;
#else
  return 1;
#endif
}

// Calls work(i) for each i below count; on one thread unless `threads`.
template <typename Work>
void run(size_t count, [[maybe_unused]] bool threads, const Work& work) {
#ifdef HAS_threadpool
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (threads && pool && count > 1) {
    pool->run(work, count);
    return;
  }
#endif
  for (size_t i = 0; i < count; ++i) {
    work(i);
  }
}

// Memory that a thread keeps: each token calls a kernel once or several times for each layer.
template <typename T>
class Memory {
 public:
  // At least so many of T; null if memory cannot be allocated.
  T* of(size_t count) {
    if (count > size_) {
      kept_.reset(new (std::nothrow) T[count]);
      size_ = kept_ ? count : 0;
    }
    return kept_.get();
  }

 private:
  std::unique_ptr<T[]> kept_;
  size_t size_ = 0;
};

// Calls work(row) for each of `rows` rows of `size` numbers.
template <typename Work>
void run_rows(size_t rows, size_t size, const Work& work) {
  // Numbers below which other threads wake up for nothing, and rows of a part.
  constexpr size_t kNumbers = 1 << 13, kRows = 32;
  run((rows + kRows - 1) / kRows, rows * size >= kNumbers, [&](size_t part) {
    for (size_t row = part * kRows; row < std::min((part + 1) * kRows, rows); ++row) {
      work(row);
    }
  });
}

} // namespace etdeploy
