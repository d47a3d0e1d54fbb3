#include "Program.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>

#include <vector>

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::runtime::Error;

struct program {
  explicit program(const char* path)
      : module(path, Module::LoadMode::Mmap, nullptr, nullptr, nullptr, true) {}

  Module module;
  // Kernels may read a little more than they use.
  std::vector<int64_t> tokens, position = std::vector<int64_t>(16);
};

struct program* program_open(const char* path) {
  // Without this, each method has all weights once more, and takes as long to load. Programs that
  // do not use XNNPACK have no such backend, and need none.
  executorch::runtime::BackendOption shared{"weight_cache_enabled", true};
  (void)executorch::runtime::set_option("XnnpackBackend", {&shared, 1});
  return new program(path);
}

void program_close(struct program* program) {
  delete program;
}

int32_t program_load(struct program* program) {
  return static_cast<int32_t>(program->module.load());
}

int32_t program_load_method(struct program* program, const char* method) {
  return static_cast<int32_t>(program->module.load_method(method));
}

int32_t program_take(struct program* program, const char* method, const int64_t* tokens,
                     int32_t count, int64_t position, const float** logits, size_t* vocabulary) {
  program->tokens.assign(tokens, tokens + count);
  program->tokens.resize(static_cast<size_t>(count) + 16);
  program->position[0] = position;
  const auto ids = executorch::extension::from_blob(
      program->tokens.data(), {1, count}, ScalarType::Long);
  const auto at = executorch::extension::from_blob(
      program->position.data(), {1}, ScalarType::Long);
  const auto outputs = program->module.execute(method, {ids, at});
  if (!outputs.ok()) {
    return static_cast<int32_t>(outputs.error());
  }
  if (outputs->empty() || !outputs->at(0).isTensor() ||
      outputs->at(0).toTensor().scalar_type() != ScalarType::Float) {
    return static_cast<int32_t>(Error::InvalidType);
  }
  const auto tensor = outputs->at(0).toTensor();
  *logits = tensor.const_data_ptr<float>();
  *vocabulary = static_cast<size_t>(tensor.numel());
  return 0;
}
