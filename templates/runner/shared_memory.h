// Memory that the processor and Qualcomm's HTP share: without it, each call copies its tensors.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#ifdef HAS_backend_qnn
#include <dlfcn.h>

// Of ExecuTorch's backends/qualcomm/runtime/QnnExecuTorch.h, which the wheel lacks.
extern "C" {
void* QnnExecuTorchAllocCustomMem(size_t bytes, size_t alignment);
void QnnExecuTorchAddCustomMemTensorAddr(void* tensor, void* block);
void QnnExecuTorchFreeCustomMem(void* block);
}

// Whether the HTP's driver is there. Off Android, ExecuTorch calls it without looking for it.
inline bool has_htp_driver() {
  if (dlopen("libcdsprpc.so", RTLD_NOW | RTLD_LOCAL) != nullptr) {
    return true;
  }
#ifdef __ANDROID__
  const char* error = dlerror();
  std::fprintf(stderr, "etdeploy-runner: note: no memory is shared with the HTP, and each call copies "
               "its tensors: %s\n", error != nullptr ? error : "no libcdsprpc.so");
#endif
  return false;
}
#endif

// One block for many tensors: room is reserved for each, then all is allocated.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;

  ~SharedBlock() {
#ifdef HAS_backend_qnn
    if (shared_ != nullptr) {
      QnnExecuTorchFreeCustomMem(shared_);
    }
#endif
  }

  // Gives the offset of that many bytes.
  size_t reserve(size_t bytes) {
    offsets_.push_back(size_);
    size_ += (bytes + kBeyond + kAlignment - 1) / kAlignment * kAlignment;
    return offsets_.back();
  }

  // Filled with zeros. Where the HTP shares it, each tensor's place is made known, once.
  void allocate() {
#ifdef HAS_backend_qnn
    constexpr size_t kMost = size_t{INT32_MAX} - kAlignment; // the driver takes a size of 32 bits
    if (has_htp_driver()) {
      shared_ = size_ < kMost ? QnnExecuTorchAllocCustomMem(size_, kAlignment) : nullptr;
      if (shared_ == nullptr) {
        std::fprintf(stderr, "etdeploy-runner: note: the HTP shares no %zu bytes of memory, and each "
                     "call copies its tensors\n", size_);
      }
    }
    if (shared_ != nullptr) {
      start_ = static_cast<uint8_t*>(shared_);
      for (const size_t offset : offsets_) {
        QnnExecuTorchAddCustomMemTensorAddr(start_ + offset, shared_);
      }
      std::memset(start_, 0, size_);
      return;
    }
#endif
    own_.resize(size_ + kAlignment);
    start_ = own_.data();
    start_ += (kAlignment - reinterpret_cast<uintptr_t>(start_) % kAlignment) % kAlignment;
  }

  uint8_t* at(size_t offset) const { return start_ + offset; }
  // How much of it the HTP shares.
  size_t shared_bytes() const { return shared_ == nullptr ? 0 : size_; }

 private:
  static constexpr size_t kAlignment = 128; // a vector of the HTP
  static constexpr size_t kBeyond = 64; // XNNPACK reads a little beyond the end of a tensor

  std::vector<size_t> offsets_;
  size_t size_ = 0;
  std::vector<uint8_t> own_;
  uint8_t* start_ = nullptr;
  void* shared_ = nullptr;
};
