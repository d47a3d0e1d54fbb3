// What methods keep of a text between calls, as a file: keys, values and states, as they are in
// memory. What is zero there takes no room, such as positions beyond the text.
//
// A file has `kMagic`, the number of blocks of memory and their sizes, and of each block parts, an
// offset, a length and so many bytes, up to one whose length is 0. All numbers are int64.
#pragma once

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/runtime/core/hierarchical_allocator.h>

#include "../files.h"

using Block = executorch::runtime::Span<uint8_t>;

// Memory that is planned for methods. ExecuTorch's Module lets nobody see what it allocates itself.
class PlannedMemory {
 public:
  using MethodMeta = executorch::runtime::MethodMeta;
  using Allocator = executorch::runtime::HierarchicalAllocator;

  // Makes each buffer as large as any of the methods needs it.
  explicit PlannedMemory(const std::vector<MethodMeta>& methods) {
    for (const MethodMeta& meta : methods) {
      for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
        buffers_.resize(std::max(buffers_.size(), i + 1));
        const auto size = static_cast<size_t>(*meta.memory_planned_buffer_size(i));
        buffers_[i].resize(std::max(buffers_[i].size(), size));
      }
    }
    for (auto& buffer : buffers_) {
      blocks_.emplace_back(buffer.data(), buffer.size());
    }
    allocator_ = std::make_unique<Allocator>(Allocator({blocks_.data(), blocks_.size()}));
  }

  // One for all methods: they share the buffers.
  Allocator* allocator() { return allocator_.get(); }

  // Where they keep what they share; a method alone may keep it anywhere.
  std::vector<Block> kept(bool shared) const {
    return {blocks_.begin() + (shared ? 1 : 0), blocks_.end()};
  }

 private:
  std::vector<std::vector<uint8_t>> buffers_;
  std::vector<Block> blocks_;
  std::unique_ptr<Allocator> allocator_;
};

class SnapshotFile {
 public:
  explicit SnapshotFile(const std::string& path) : path_(path) {}

  // Replaces the file in one step.
  void write(const std::vector<Block>& blocks) const {
    const std::string temporary = path_ + ".tmp";
    std::ofstream file(temporary, std::ios::binary);
    file.write(kMagic, sizeof kMagic);
    put(file, sizes(blocks));
    for (const Block& block : blocks) {
      for (size_t at = 0; at < block.size();) {
        const size_t from = next(block, at, false), to = next(block, from, true);
        if (from < to) {
          put(file, {static_cast<int64_t>(from), static_cast<int64_t>(to - from)});
          file.write(reinterpret_cast<const char*>(block.data() + from),
                     static_cast<std::streamsize>(to - from));
        }
        at = to;
      }
      put(file, {0, 0});
    }
    file.close();
    if (!file || std::rename(temporary.c_str(), path_.c_str()) != 0) {
      const std::string reason = std::strerror(errno);
      std::remove(temporary.c_str());
      throw Failure(kOutput, "cannot write " + path_ + ": " + reason);
    }
  }

  // Restores the memory.
  void read(const std::vector<Block>& blocks) const {
    std::ifstream file(path_, std::ios::binary);
    char magic[sizeof kMagic];
    require(file.read(magic, sizeof magic) && std::memcmp(magic, kMagic, sizeof magic) == 0,
            "is no snapshot of a cache");
    for (const int64_t size : sizes(blocks)) {
      require(number(file) == size, "is of a program with another cache");
    }
    for (const Block& block : blocks) {
      std::memset(block.data(), 0, block.size());
      const auto size = static_cast<int64_t>(block.size());
      for (;;) {
        const int64_t at = number(file), length = number(file);
        require(at >= 0 && at <= size && length >= 0 && length <= size - at, kDamaged);
        if (length == 0) {
          break;
        }
        require(static_cast<bool>(file.read(reinterpret_cast<char*>(block.data()) + at, length)),
                kDamaged);
      }
    }
    require(file.peek() == std::ifstream::traits_type::eof(), kDamaged);
  }

 private:
  static constexpr char kMagic[8] = {'e', 't', 'c', 'a', 'c', 'h', 'e', '1'};
  static constexpr const char* kDamaged = "is damaged";
  // Memory is looked at in steps of so many bytes.
  static constexpr size_t kStep = 256;

  static std::vector<int64_t> sizes(const std::vector<Block>& blocks) {
    std::vector<int64_t> found{static_cast<int64_t>(blocks.size())};
    for (const Block& block : blocks) {
      found.push_back(static_cast<int64_t>(block.size()));
    }
    return found;
  }

  // Where the next step begins that is zero, or is not.
  static size_t next(const Block& block, size_t at, bool zero) {
    static const uint8_t zeros[kStep] = {};
    while (at < block.size()) {
      const size_t length = std::min(kStep, block.size() - at);
      if ((std::memcmp(block.data() + at, zeros, length) == 0) == zero) {
        break;
      }
      at += length;
    }
    return at;
  }

  static void put(std::ofstream& file, const std::vector<int64_t>& numbers) {
    file.write(reinterpret_cast<const char*>(numbers.data()),
               static_cast<std::streamsize>(numbers.size() * sizeof(int64_t)));
  }

  int64_t number(std::ifstream& file) const {
    int64_t found = 0;
    require(static_cast<bool>(file.read(reinterpret_cast<char*>(&found), sizeof found)), kDamaged);
    return found;
  }

  void require(bool is_sound, const char* what) const {
    if (!is_sound) {
      throw Failure(kInputs, path_ + " " + what);
    }
  }

  const std::string path_;
};
