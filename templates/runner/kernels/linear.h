// Products of rows with quantized weights: of 8 bits with a scale for each output, or of 4 bits with a
// scale for each group. Each row is first rounded to 8 bits with its own scale and zero point, and
// sums of products are integers.
#pragma once

#include <cstdint>

namespace etdeploy {

// Outputs that are computed together, and inputs whose sum of a row is known.
constexpr int64_t kOutputs = 16, kInputs = 32;

// Weights of 4 bits are stored in blocks of 16 outputs and 32 inputs, 256 bytes each. A block has 4
// runs of 8 inputs, a run 4 bytes for each output: the first 4 inputs are in their low bits, the
// others in their high bits, with 8 added to each weight.
constexpr int64_t kBytes = kOutputs * kInputs / 2;

struct GroupedWeights {
  const uint8_t* values; // (outputs / 16, inputs / 32, 256)
  const uint16_t* scales; // bfloat16, (outputs / 16, groups, 16)
  const float* sums; // of each output's weights, times their scales
  const float* bias; // of each output
  int64_t outputs, inputs, groups;
};

// Sums of products of so many bytes fit 32 bits, also with 128 added to one side.
constexpr int64_t kMostInputs = 1 << 16;

struct ChannelwiseWeights {
  const int8_t* values; // (outputs, inputs)
  const float* scales; // of each output
  const float* sums; // of each output's weights, times its scale
  const float* bias; // of each output
  int64_t outputs, inputs;
};

// Computes out (rows, outputs) of x (rows, inputs). Returns false if memory for the rounded rows
// cannot be allocated.
bool multiply(const GroupedWeights& weights, const float* x, int64_t rows, float* out);
bool multiply(const ChannelwiseWeights& weights, const float* x, int64_t rows, float* out);

} // namespace etdeploy
