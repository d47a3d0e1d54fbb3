// Keys and values that are inputs and outputs of methods (`StaticCache` in
// etdeploy/program/generation.py). They stay where they are: a call reads them in place, and only
// the keys and values of its tokens are written afterwards.
#pragma once

#include "../components.h"
#include "../tensors.h"
#include "request.h"

class StaticCacheTensors {
 public:
  explicit StaticCacheTensors(const StaticCache& facts) : facts_(facts) {}

  // Where masks begin among the inputs, and how many there are.
  static constexpr size_t kFirstMask = 2;
  size_t masks() const { return facts_.windows.size(); }
  int64_t places() const { return facts_.places; }

  // Adds a layer's keys (even index) or values, as the first method has them; those of the others
  // have to be alike.
  void add(size_t index, ScalarType type, const Shape& sizes, const std::string& method) {
    const size_t element = executorch::runtime::elementSize(type);
    const auto count = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    if (index == layers_.size()) {
      const bool keys = index % 2 == 0;
      layers_.push_back({type, sizes, Bytes(static_cast<size_t>(count) * element + kPadding),
                         keys ? sizes[1] * sizes[2] : sizes[1],
                         static_cast<int64_t>(element) * (keys ? 1 : sizes[3])});
    }
    const Layer& layer = layers_.at(index);
    if (layer.type != type || layer.sizes != sizes) {
      throw Failure(kInputs, "method " + method + " has a cache of " + type_name(type) + " " +
                    json_sizes(sizes) + ", the first method one of " + type_name(layer.type) + " " +
                    json_sizes(layer.sizes));
    }
  }

  size_t size() const { return layers_.size(); }
  Bytes& bytes(size_t index) { return layers_[index].bytes; }
  const Shape& sizes(size_t index) const { return layers_[index].sizes; }

  // What tokens see: those of earlier positions, and among the call's `length` those behind
  // `padding`. A place of padding sees itself alone.
  Bytes& mask(size_t index, int64_t length, int64_t padding, int64_t position) {
    const int64_t window = facts_.windows[index], width = facts_.places + length;
    masks_.resize(masks());
    Bytes& bytes = masks_[index];
    bytes.resize(std::max(bytes.size(),
                          static_cast<size_t>(length * width) * sizeof(float) + kPadding));
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
      std::memcpy(bytes.data() + static_cast<size_t>(row * width) * sizeof(float), row_.data(),
                  row_.size() * sizeof(float));
    }
    return bytes;
  }

  // Writes what a method of `length` tokens gave for the last `taken` of them. Nothing looks back
  // at the last position of the context, which has no place.
  void store(size_t index, const void* given, int64_t length, int64_t taken, int64_t position) {
    Layer& layer = layers_[index];
    const int64_t unit = layer.unit, stored = std::min(taken, facts_.places - position);
    const auto* from = static_cast<const uint8_t*>(given) + (length - taken) * unit;
    uint8_t* to = layer.bytes.data() + position * unit;
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
    Bytes bytes;
    int64_t rows, unit;
  };

  const StaticCache facts_;
  std::vector<Layer> layers_;
  std::vector<Bytes> masks_;
  std::vector<float> row_;
};
