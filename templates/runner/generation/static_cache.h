// Keys and values that are inputs and outputs of methods (`StaticCache` in
// etdeploy/program/generation.py). They stay where they are: a call reads them in place, and only
// the keys and values of its tokens are written afterwards. All inputs and outputs are in one block,
// which the HTP may share, and methods are given their places once.
#pragma once

#include "../loading.h"
#include "../shared_memory.h"
#include "request.h"
#include "snapshot.h"

class StaticCacheTensors {
 public:
  explicit StaticCacheTensors(const StaticCache& facts) : facts_(facts) {}

  // Where masks begin among the inputs, and how many there are.
  static constexpr size_t kFirstMask = 2;
  size_t masks() const { return facts_.windows.size(); }
  int64_t places() const { return facts_.places; }

  // Reserves room for a method's inputs and outputs. Keys and values are those of the first method,
  // and those of the others have to be alike.
  void add(const std::string& method, const std::vector<TensorInfo>& inputs,
           const std::vector<TensorInfo>& outputs) {
    Tensors tensors{method, inputs, outputs, {}, {}, {}};
    const size_t caches = kFirstMask + masks();
    for (size_t i = 0; i < inputs.size(); ++i) {
      tensors.at.push_back(i < caches ? block_.reserve(inputs[i].nbytes())
                                      : add_layer(i - caches, inputs[i], method));
    }
    for (const TensorInfo& output : outputs) {
      tensors.at.push_back(block_.reserve(output.nbytes()));
    }
    methods_.push_back(std::move(tensors));
  }

  // Allocates the block, and lets all methods use it.
  void bind(Module& module) {
    block_.allocate();
    for (Tensors& method : methods_) {
      for (const TensorInfo& info : method.inputs) {
        method.tensors.push_back(tensor(info, block_.at(method.at[method.tensors.size()])));
        method.values.emplace_back(method.tensors.back());
      }
      for (size_t i = 0; i < method.outputs.size(); ++i) {
        // One that the program has planned memory for is written there.
        if (!method.outputs[i].is_memory_planned()) {
          method.tensors.push_back(
              tensor(method.outputs[i], block_.at(method.at[method.inputs.size() + i])));
          require(module.set_output(method.name, method.tensors.back(), i), kProgram,
                  "method " + method.name + " takes no memory for output " + std::to_string(i));
        }
      }
    }
  }

  // Of a method, by the order in which they were added.
  const std::vector<EValue>& values(size_t method) const { return methods_[method].values; }
  uint8_t* input(size_t method, size_t index) const { return block_.at(methods_[method].at[index]); }
  size_t size() const { return layers_.size(); }
  size_t shared_bytes() const { return block_.shared_bytes(); }

  // Where keys and values are.
  std::vector<Block> kept() const {
    std::vector<Block> found;
    for (const Layer& layer : layers_) {
      found.emplace_back(block_.at(layer.at),
                         static_cast<size_t>(layer.rows * facts_.places * layer.unit));
    }
    return found;
  }

  // What tokens see: those of earlier positions, and among the call's `length` those behind
  // `padding`. A place of padding sees itself alone.
  void write_mask(size_t method, size_t index, int64_t length, int64_t padding, int64_t position) {
    const int64_t window = facts_.windows[index], width = facts_.places + length;
    uint8_t* const to = input(method, kFirstMask + index);
    for (int64_t row = 0; row < length; ++row) {
      row_.assign(static_cast<size_t>(width), facts_.masked);
      const int64_t own = position + row - padding;
      const int64_t first = window == 0 ? 0 : own - window + 1;
      if (row >= padding) {
        std::fill(row_.begin() + std::clamp<int64_t>(first, 0, position), row_.begin() + position,
                  0.0f);
        const int64_t oldest = std::max(padding, first - position + padding);
        std::fill(row_.begin() + facts_.places + oldest, row_.begin() + facts_.places + row, 0.0f);
      }
      row_[static_cast<size_t>(facts_.places + row)] = 0.0f;
      std::memcpy(to + static_cast<size_t>(row * width) * sizeof(float), row_.data(),
                  row_.size() * sizeof(float));
    }
  }

  // Writes what a method of `length` tokens gave for the last `taken` of them. Nothing looks back
  // at the last position of the context, which has no place.
  void store(size_t index, const void* given, int64_t length, int64_t taken, int64_t position) {
    const Layer& layer = layers_[index];
    const int64_t unit = layer.unit, stored = std::min(taken, facts_.places - position);
    const auto* from = static_cast<const uint8_t*>(given) + (length - taken) * unit;
    uint8_t* to = block_.at(layer.at) + position * unit;
    for (int64_t row = 0; row < layer.rows && stored > 0; ++row) {
      std::memcpy(to + row * facts_.places * unit, from + row * length * unit,
                  static_cast<size_t>(stored * unit));
    }
  }

 private:
  // In `rows` blocks, each position has `unit` bytes.
  struct Layer {
    ScalarType type;
    Shape sizes;
    size_t at;
    int64_t rows, unit;
  };
  // `at` has the offsets of inputs, then outputs.
  struct Tensors {
    std::string name;
    std::vector<TensorInfo> inputs, outputs;
    std::vector<size_t> at;
    std::vector<executorch::extension::TensorPtr> tensors;
    std::vector<EValue> values;
  };

  // A layer's keys (even index) or values; gives their offset.
  size_t add_layer(size_t index, const TensorInfo& info, const std::string& method) {
    const ScalarType type = info.scalar_type();
    const Shape sizes(info.sizes().begin(), info.sizes().end());
    if (index == layers_.size()) {
      const bool keys = index % 2 == 0;
      const auto element = static_cast<int64_t>(executorch::runtime::elementSize(type));
      layers_.push_back({type, sizes, block_.reserve(info.nbytes()),
                         keys ? sizes[1] * sizes[2] : sizes[1], element * (keys ? 1 : sizes[3])});
    }
    const Layer& layer = layers_.at(index);
    if (layer.type != type || layer.sizes != sizes) {
      throw Failure(kInputs, "method " + method + " has a cache of " + type_name(type) + " " +
                    json_sizes(sizes) + ", the first method one of " + type_name(layer.type) + " " +
                    json_sizes(layer.sizes));
    }
    return layer.at;
  }

  static executorch::extension::TensorPtr tensor(const TensorInfo& info, uint8_t* memory) {
    return make_tensor({info.sizes().begin(), info.sizes().end()}, memory, info);
  }

  const StaticCache facts_;
  SharedBlock block_;
  std::vector<Layer> layers_;
  std::vector<Tensors> methods_;
  std::vector<float> row_;
};
