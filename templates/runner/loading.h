// Checks and loads a program and its methods, and tells how long that takes.
#pragma once

#include <ctime>

#include "availability.h"
#include "components.h"
#include "memory.h"
#include "tensors.h"

using executorch::extension::Module;
using executorch::runtime::Error;

inline void require(Error error, Exit code, const std::string& what) {
  if (error != Error::Ok) {
    throw Failure(code, what + ": " + executorch::runtime::to_string(error));
  }
}

// Checks a program thoroughly, which keeps a damaged file from crashing the loader; gives the time
// as JSON. Applications seldom do this, so it is not part of loading.
inline std::string verify(const std::string& program) {
  if (!std::ifstream(program)) {
    throw Failure(kProgram, "cannot read the program " + program);
  }
  const int64_t started = now_ns();
  require(Module(program, Module::LoadMode::Mmap)
              .load(executorch::runtime::Program::Verification::InternalConsistency),
          kProgram, program + " is no sound program");
  return ",\n  \"verify_ms\": " + json_ms(now_ns() - started);
}

// What comes before loading, in every workload: threads, a profiler that is off unless it is traced,
// the check. Gives the start of the results.
inline std::string begin_results(const std::string& program, unsigned threads, bool traced) {
  if (!traced) {
    profile_nothing();
  }
  return kJsonHead + ",\n  \"started_unix_s\": " + std::to_string(std::time(nullptr)) +
      ",\n  \"threads\": " + std::to_string(use_threads(threads)) + verify(program);
}

// Loads a program; gives the time as JSON.
inline std::string load_program(Module& module, const std::string& program) {
  const int64_t started = now_ns();
  require(module.load(executorch::runtime::Program::Verification::Minimal), kProgram,
          program + " cannot be loaded");
  return ",\n  \"load_program_ms\": " + json_ms(now_ns() - started);
}

// Loads a method of a program that is loaded; gives the time. A tracer and memory of its own replace
// the module's.
inline int64_t load_method(Module& module, const std::string& method,
                           executorch::runtime::EventTracer* tracer = nullptr,
                           executorch::runtime::HierarchicalAllocator* memory = nullptr) {
  const int64_t started = now_ns();
  const auto meta = module.method_meta(method);
  require(meta.error(), kProgram, "the program has no method " + method);
  const Error error = module.load_method(method, memory, tracer);
  if (error != Error::Ok) {
    tell_unavailable(*meta);
  }
  require(error, kProgram, "method " + method + " cannot be loaded");
  return now_ns() - started;
}
