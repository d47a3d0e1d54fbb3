// The parts that depend on the linked ExecuTorch components.
#pragma once

#include <memory>
#include <set>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/kernel/operator_registry.h>
#ifdef HAS_etdump
#include <executorch/devtools/etdump/etdump_flatcc.h>
#endif

#include "files.h"
#ifdef HAS_threadpool
#include "threadpool.h"
#endif

// The registered operators and backends.
inline std::string json_kernels() {
  // An operator may have several kernels, one for each data type and dim order.
  std::set<std::string> operators, backends;
  for (const auto& kernel : executorch::runtime::get_registered_kernels()) {
    operators.insert(kernel.name_);
  }
  for (size_t i = 0; i < executorch::runtime::get_num_registered_backends(); ++i) {
    backends.insert(*executorch::runtime::get_backend_name(i));
  }
  return kJsonHead + ",\n  \"operators\": " + json_list(operators, json_string) +
      ",\n  \"backends\": " + json_list(backends, json_string) + "\n}\n";
}

// Sets the size of the thread pool (0 leaves it) and returns the threads in use; 1 without a pool.
inline unsigned use_threads(unsigned threads) {
#ifdef HAS_threadpool
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (pool != nullptr && (threads == 0 || pool->_unsafe_reset_threadpool(threads))) {
    return static_cast<unsigned>(pool->get_thread_count());
  }
#endif
  if (threads > 1) {
    std::fprintf(stderr, "etdeploy-runner: note: without a thread pool, one thread is used\n");
  }
  return 1;
}

// QNN's profiler follows what the program was compiled with, and changes the times of every
// inference: it stays off unless a trace is wanted. Call this before a method is loaded.
inline void profile_nothing() {
#ifdef HAS_backend_qnn
  executorch::runtime::BackendOption off{"qnn_runtime_profile_level", 0};
  if (executorch::runtime::set_option("QnnBackend", {&off, 1}) != executorch::runtime::Error::Ok) {
    std::fprintf(stderr, "etdeploy-runner: note: QNN's profiler may be on, and slow this down\n");
  }
#endif
}

// Methods that are loaded after this share what XNNPACK makes of equal weights. Without that, each
// method of a language model has all weights once more, and takes as long to load.
inline void share_packed_weights() {
#ifdef HAS_backend_xnnpack
  executorch::runtime::BackendOption on{"weight_cache_enabled", true};
  if (executorch::runtime::set_option("XnnpackBackend", {&on, 1}) !=
      executorch::runtime::Error::Ok) {
    std::fprintf(stderr, "etdeploy-runner: note: XNNPACK keeps weights once for each method\n");
  }
#endif
}

// A tracer for the method; none without a file for its trace.
inline std::unique_ptr<executorch::runtime::EventTracer> make_tracer(const std::string& path) {
  if (path.empty()) {
    return nullptr;
  }
#ifdef HAS_etdump
  return std::make_unique<executorch::etdump::ETDumpGen>();
#else
  throw Failure(kArguments, "--etdump: this runner is built without the component etdump");
#endif
}

inline void restart_trace([[maybe_unused]] executorch::runtime::EventTracer* tracer) {
#ifdef HAS_etdump
  if (tracer != nullptr) {
    static_cast<executorch::etdump::ETDumpGen*>(tracer)->reset();
  }
#endif
}

inline void write_trace([[maybe_unused]] executorch::runtime::EventTracer* tracer,
                        [[maybe_unused]] const std::string& path) {
#ifdef HAS_etdump
  if (tracer != nullptr) {
    const auto trace = static_cast<executorch::etdump::ETDumpGen*>(tracer)->get_etdump_data();
    const std::unique_ptr<void, decltype(&std::free)> owner(trace.buf, &std::free);
    write_file(path, trace.buf, trace.size);
  }
#endif
}
