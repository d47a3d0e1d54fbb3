// Compares each way to compute linear layers with quantized weights that this processor has with
// products in 64-bit floats. Prints a line of JSON for each way and number of rows.
#include "multiply.cpp"

#include <cinttypes>
#include <cstdio>
#include <random>
#include <vector>

using namespace etdeploy;

namespace {

struct Named {
  const char* name;
  Set set;
};

std::vector<Named> sets() {
  std::vector<Named> found{{"plain", {}}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    found.push_back({"avx2", kAvx2});
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
      found.push_back({"vnni", kVnni});
    }
  }
#endif
  return found;
}

struct Size {
  int64_t rows, inputs, outputs, groups;
};

// Random weights of 4 bits in groups.
struct Grouped {
  Size size;
  std::vector<uint8_t> values;
  std::vector<uint16_t> scales;

  Grouped(const Size& size, std::mt19937& random)
      : size(size), values(size.inputs * size.outputs / 2), scales(size.outputs * size.groups) {
    for (auto& each : values) {
      each = static_cast<uint8_t>(random());
    }
    for (auto& each : scales) {
      each = static_cast<uint16_t>(0x3c00 + random() % 512); // 0.008 to 0.12
    }
  }

  double weight(int64_t output, int64_t input) const {
    const int64_t block = output / kOutputs * (size.inputs / kInputs) + input / kInputs;
    const int64_t run = input % kInputs / 8;
    const uint8_t both =
        values[block * kBytes + (run * kOutputs + output % kOutputs) * 4 + input % 4];
    const int value = (input % 8 < 4 ? both & 15 : both >> 4) - 8;
    const int64_t group = input / (size.inputs / size.groups);
    const int64_t at = (output / kOutputs * size.groups + group) * kOutputs + output % kOutputs;
    return value * static_cast<double>(from_bfloat16(scales[at]));
  }

  GroupedWeights with(const float* sums, const float* bias) const {
    return {values.data(), scales.data(), sums, bias, size.outputs, size.inputs, size.groups};
  }
};

// Random weights of 8 bits, of which each output shares a scale; some are the least and the greatest.
struct Channelwise {
  Size size;
  std::vector<int8_t> values;
  std::vector<float> scales;

  Channelwise(const Size& size, std::mt19937& random)
      : size(size), values(size.inputs * size.outputs), scales(size.outputs) {
    for (auto& each : values) {
      each = static_cast<int8_t>(random() % 8 ? random() : random() % 2 ? -128 : 127);
    }
    for (auto& each : scales) {
      each = static_cast<float>(1 + random() % 100) / 5000;
    }
  }

  double weight(int64_t output, int64_t input) const {
    return values[output * size.inputs + input] * static_cast<double>(scales[output]);
  }

  ChannelwiseWeights with(const float* sums, const float* bias) const {
    return {values.data(), scales.data(), sums, bias, size.outputs, size.inputs};
  }
};

// Products of rows with weights, all of them random.
template <typename Kind>
struct Case {
  Size size;
  std::mt19937 random{7};
  Kind kind;
  std::vector<float> sums, bias, x;

  explicit Case(const Size& size)
      : size(size), kind(size, random), sums(size.outputs), bias(size.outputs),
        x(size.rows * size.inputs) {
    const auto number = [&] { return static_cast<float>(random() % 2001) / 500 - 1; };
    for (auto& each : bias) {
      each = number();
    }
    for (auto& each : x) {
      each = number();
    }
    for (int64_t o = 0; o < size.outputs; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < size.inputs; ++i) {
        sum += kind.weight(o, i);
      }
      sums[o] = static_cast<float>(sum);
    }
  }

  // With the row as `plain` rounds it.
  double exact(int64_t row, int64_t output) const {
    std::vector<int8_t> rounded(size.inputs);
    std::vector<int32_t> offsets(size.inputs / kInputs);
    Steps steps;
    round_row(x.data() + row * size.inputs, size.inputs, rounded.data(), offsets.data(), steps);
    double sum = 0;
    for (int64_t i = 0; i < size.inputs; ++i) {
      sum += (rounded[i] - steps.zero) * kind.weight(output, i);
    }
    return sum * steps.scale + bias[output];
  }

  std::vector<float> computed(const Set& set, int64_t first, int64_t count) const {
    std::vector<float> out(count * size.outputs);
    const auto weights = kind.with(sums.data(), bias.data());
    multiply_rows(set, weights, x.data() + first * size.inputs, count, out.data());
    return out;
  }
};

template <typename Kind>
void check(const char* what, const Named& each, const Size& size) {
  const Case<Kind> given(size);
  const std::vector<float> all = given.computed(each.set, 0, size.rows);
  double error = 0, largest = 0;
  bool alone = true;
  uint64_t digest = 1469598103934665603u;
  for (int64_t row = 0; row < size.rows; ++row) {
    const std::vector<float> one = given.computed(each.set, row, 1);
    for (int64_t o = 0; o < size.outputs; ++o) {
      const float found = all[row * size.outputs + o];
      const double wanted = given.exact(row, o);
      error = std::max(error, std::fabs(found - wanted));
      largest = std::max(largest, std::fabs(wanted));
      alone = alone && std::memcmp(&found, &one[o], sizeof found) == 0;
      uint32_t bits;
      std::memcpy(&bits, &found, sizeof bits);
      digest = (digest ^ bits) * 1099511628211u;
    }
  }
  std::printf("{\"set\": \"%s\", \"case\": \"%s, %" PRId64 " of %" PRId64 " by %" PRId64 " in %" PRId64
              "\", \"error\": %.9g, \"largest\": %.9g, \"alone\": %s, \"digest\": \"%" PRIx64
              "\"}\n",
              each.name, what, size.rows, size.outputs, size.inputs, size.groups, error, largest,
              alone ? "true" : "false", digest);
}

} // namespace

int main() {
  for (const auto& each : sets()) {
    check<Grouped>("4 bits", each, {1, 64, 16, 2});
    check<Grouped>("4 bits", each, {15, 96, 48, 3});
    check<Grouped>("4 bits", each, {9, 256, 32, 2});
    check<Grouped>("4 bits", each, {6, 1536, 16, 48});
    check<Channelwise>("8 bits", each, {1, 32, 16, 1});
    check<Channelwise>("8 bits", each, {15, 96, 48, 1});
    check<Channelwise>("8 bits", each, {7, 576, 32, 1});
  }
}
