// Products of rows with weights of 4 bits in groups, which share a scale. A row is rounded to 8 bits
// first, with a scale and a zero point of its own; sums of products are whole numbers.
#pragma once

#include <cstdint>

namespace etdeploy {

// Outputs that stand together, and inputs: 16 rows of 32 weights are 256 bytes. A byte has two of
// them with 8 added, of one output: with bytes in 4 runs of 16 outputs of 4, the first half of 8
// inputs in its low bits and the second in its high bits.
constexpr int64_t kOutputs = 16, kInputs = 32, kBytes = kOutputs * kInputs / 2;

struct Weights {
  const uint8_t* values; // (outputs / 16, inputs / 32, 256)
  const uint16_t* scales; // bfloat16, (outputs / 16, groups, 16)
  const float* sums; // of each output's weights, times their scales
  const float* bias; // of each output
  int64_t outputs, inputs, groups;
};

// out (rows, outputs) for x (rows, inputs). False where there is no memory for the rounded rows.
bool multiply(const Weights& weights, const float* x, int64_t rows, float* out);

} // namespace etdeploy
