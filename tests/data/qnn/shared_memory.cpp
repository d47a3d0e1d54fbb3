// Stands in for libexecutorch_backend_qnn.so: the backend `QnnBackend`, and ExecuTorch's functions
// for memory that the HTP shares. Prints what it is asked for to the file $STAND_IN_LOG; allocates
// nothing if that begins with "refuse".
//
// What it computes, of any method of tests/support/qnn_shared_memory.py: the key of a token is
// (token + 1, 1), its value (position + 1, 2), and the next token the sum over what the last one
// sees of key[0] * value[0] * key[1] * value[1] / 2, modulo the vocabulary.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <executorch/runtime/backend/interface.h>

using namespace executorch::runtime;

namespace {

const char* path() { return std::getenv("STAND_IN_LOG"); }

template <typename... Values>
void tell(const char* format, Values... values) {
  if (std::FILE* file = std::fopen(path(), "a")) {
    std::fprintf(file, format, values...);
    std::fclose(file);
  }
}

std::set<void*> known;
// Keys and values as the last call found them.
std::vector<std::vector<float>> before;

// How many of a layer's positions are others than in the last call.
void tell_changes(size_t index, const float* cache, int64_t rows, int64_t places, int64_t unit) {
  before.resize(std::max(before.size(), index + 1));
  std::vector<float> now(cache, cache + rows * places * unit);
  before[index].resize(now.size());
  tell(" changed");
  for (int64_t at = 0; at < places; ++at) {
    bool changed = false;
    for (int64_t i = 0; i < rows * unit; ++i) {
      const auto each = static_cast<size_t>((i / unit * places + at) * unit + i % unit);
      changed = changed || before[index][each] != now[each];
    }
    if (changed) {
      tell(":%d", static_cast<int>(at));
    }
  }
  before[index] = now;
}

class StandIn final : public BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec>) const override {
    processed->Free();
    tell("load %s\n", context.get_method_name());
    return static_cast<DelegateHandle*>(this_());
  }

  // Tokens, positions, a mask, keys, values; logits, new keys, new values.
  Error execute(BackendExecutionContext& context, DelegateHandle*, Span<EValue*> args) const override {
    tell("execute %s", context.get_method_name());
    size_t shared = 0;
    for (EValue* arg : args) {
      shared += known.count(arg->toTensor().mutable_data_ptr());
    }
    const auto data = [&](size_t i) { return args[i]->toTensor().mutable_data_ptr<float>(); };
    const auto* tokens = args[0]->toTensor().const_data_ptr<int64_t>();
    const auto* positions = args[1]->toTensor().const_data_ptr<int64_t>();
    const int64_t length = args[0]->toTensor().size(1), places = args[3]->toTensor().size(3);
    const float *mask = data(2) + (length - 1) * (places + length), *keys = data(3), *values = data(4);
    tell(" shared %zu of %zu", shared, args.size());
    tell_changes(0, keys, 2, places, 1);
    tell_changes(1, values, 1, places, 2);
    tell("\n");
    float *logits = data(5), *new_keys = data(6), *new_values = data(7);
    for (int64_t i = 0; i < length; ++i) {
      new_keys[i] = static_cast<float>(tokens[i] + 1);
      new_keys[length + i] = 1;
      new_values[2 * i] = static_cast<float>(positions[i] + 1);
      new_values[2 * i + 1] = 2;
    }
    double sum = 0;
    for (int64_t i = 0; i < places + length; ++i) {
      const bool own = i >= places;
      const int64_t at = own ? i - places : i, width = own ? length : places;
      const float *key = own ? new_keys : keys, *value = own ? new_values : values;
      sum += mask[i] != 0 ? 0 : key[at] * key[width + at] * value[2 * at] * value[2 * at + 1] / 2;
    }
    const auto vocabulary = args[5]->toTensor().size(1);
    std::fill(logits, logits + vocabulary, 0.0f);
    logits[static_cast<int64_t>(sum) % vocabulary] = 1;
    return Error::Ok;
  }

  void destroy(DelegateHandle*) const override { tell("destroy\n"); }

  Error set_option(BackendOptionContext&, const Span<BackendOption>&) override { return Error::Ok; }

 private:
  void* this_() const { return const_cast<StandIn*>(this); }
};

StandIn stand_in;
const auto registered = register_backend({"QnnBackend", &stand_in});

} // namespace

extern "C" {

void* QnnExecuTorchAllocCustomMem(size_t bytes, size_t alignment) {
  tell("allocate %zu\n", bytes);
  if (std::string(path()).rfind("refuse", 0) == 0) {
    return nullptr;
  }
  void* block = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  std::memset(block, 0xff, bytes); // as memory of others would be
  return block;
}

void QnnExecuTorchAddCustomMemTensorAddr(void* tensor, void*) {
  tell(known.insert(tensor).second ? "add\n" : "add again\n");
}

void QnnExecuTorchFreeCustomMem(void* block) {
  tell("free\n");
  std::free(block);
}
}
