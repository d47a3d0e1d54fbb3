// Work of a kernel on the threads of ExecuTorch's pool, where the runner has it.
#pragma once

#include <cstddef>

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

} // namespace etdeploy
