// A backend in a shared library, as Qualcomm's is: it registers itself when it is loaded.
#include <cstdio>
#include <cstdlib>

#include <executorch/runtime/backend/interface.h>

using namespace executorch::runtime;

namespace {
class Nothing final : public BackendInterface {
 public:
  bool is_available() const override { return false; }
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer*,
                               ArrayRef<CompileSpec>) const override {
    return Error::NotSupported;
  }
  Error set_option(BackendOptionContext&, const Span<BackendOption>& options) override {
    for (const auto& option : options) {
      std::fprintf(stderr, "stand-in: %s=%d\n", option.key, std::get<int>(option.value));
    }
    return Error::Ok;
  }
  Error execute(BackendExecutionContext&, DelegateHandle*, Span<EValue*>) const override {
    return Error::NotSupported;
  }
};
Nothing nothing;
const auto registered [[maybe_unused]] = register_backend(Backend{"QnnBackend", &nothing});
} // namespace

// As Qualcomm's library offers them: runners get memory from them where the HTP's driver is there.
extern "C" {
void* QnnExecuTorchAllocCustomMem(size_t, size_t) { return nullptr; }
void QnnExecuTorchAddCustomMemTensorAddr(void*, void*) {}
void QnnExecuTorchFreeCustomMem(void*) { std::abort(); } // it gave none
}
