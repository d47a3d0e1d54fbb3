// Compares each way to compute etdeploy::grouped_linear that this processor has with products in
// 64-bit floats. Prints a line of JSON for each way and number of rows.
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
    found.push_back({"avx2", {round_row_avx2, multiply_avx2}});
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
      found.push_back({"vnni", {round_row_avx2, multiply_vnni}});
    }
  }
#endif
  return found;
}

// Products of rows with weights, all of them random.
struct Case {
  int64_t inputs, outputs, groups, rows;
  std::vector<uint8_t> values;
  std::vector<uint16_t> scales;
  std::vector<float> sums, bias, x;

  Case(int64_t inputs, int64_t outputs, int64_t groups, int64_t rows)
      : inputs(inputs), outputs(outputs), groups(groups), rows(rows), values(inputs * outputs / 2),
        scales(outputs * groups), sums(outputs), bias(outputs), x(rows * inputs) {
    std::mt19937 random(7);
    const auto number = [&] { return static_cast<float>(random() % 2001) / 500 - 1; };
    for (auto& each : values) {
      each = static_cast<uint8_t>(random());
    }
    for (auto& each : scales) {
      each = static_cast<uint16_t>(0x3c00 + random() % 512); // 0.008 to 0.12
    }
    for (auto& each : bias) {
      each = number();
    }
    for (auto& each : x) {
      each = number();
    }
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < inputs; ++i) {
        sum += weight(o, i);
      }
      sums[o] = static_cast<float>(sum);
    }
  }

  double weight(int64_t output, int64_t input) const {
    const int64_t block = output / kOutputs * (inputs / kInputs) + input / kInputs;
    const int64_t run = input % kInputs / 8;
    const uint8_t both =
        values[block * kBytes + (run * kOutputs + output % kOutputs) * 4 + input % 4];
    const int value = (input % 8 < 4 ? both & 15 : both >> 4) - 8;
    const int64_t group = input / (inputs / groups);
    const int64_t at = (output / kOutputs * groups + group) * kOutputs + output % kOutputs;
    return value * static_cast<double>(from_bfloat16(scales[at]));
  }

  // With the row as `plain` rounds it.
  double exact(int64_t row, int64_t output) const {
    std::vector<int8_t> rounded(inputs);
    std::vector<int32_t> excess(inputs / kInputs);
    Steps steps;
    round_row(x.data() + row * inputs, inputs, rounded.data(), excess.data(), steps);
    double sum = 0;
    for (int64_t i = 0; i < inputs; ++i) {
      sum += (rounded[i] - steps.zero) * weight(output, i);
    }
    return sum * steps.scale + bias[output];
  }

  std::vector<float> computed(const Set& set, int64_t first, int64_t count) const {
    const int64_t blocks = inputs / kInputs;
    std::vector<int8_t> rounded(count * inputs);
    std::vector<int32_t> excess(count * blocks);
    std::vector<float> steps(count), zeros(count), out(count * outputs);
    for (int64_t row = 0; row < count; ++row) {
      Steps own;
      set.round(x.data() + (first + row) * inputs, inputs, rounded.data() + row * inputs,
                excess.data() + row * blocks, own);
      steps[row] = own.scale;
      zeros[row] = own.zero;
    }
    const Weights weights{values.data(), scales.data(), sums.data(), bias.data(),
                          outputs, inputs, groups};
    const Rounded rows{rounded.data(), excess.data(), steps.data(), zeros.data()};
    for (int64_t index = 0; index < outputs / kOutputs; ++index) {
      set.multiply({weights, rows, index}, 0, count, out.data());
    }
    return out;
  }
};

void check(const Named& each, const Case& given) {
  const std::vector<float> all = given.computed(each.set, 0, given.rows);
  double error = 0, largest = 0;
  bool alone = true;
  uint64_t digest = 1469598103934665603u;
  for (int64_t row = 0; row < given.rows; ++row) {
    const std::vector<float> one = given.computed(each.set, row, 1);
    for (int64_t o = 0; o < given.outputs; ++o) {
      const float found = all[row * given.outputs + o];
      const double wanted = given.exact(row, o);
      error = std::max(error, std::fabs(found - wanted));
      largest = std::max(largest, std::fabs(wanted));
      alone = alone && std::memcmp(&found, &one[o], sizeof found) == 0;
      uint32_t bits;
      std::memcpy(&bits, &found, sizeof bits);
      digest = (digest ^ bits) * 1099511628211u;
    }
  }
  std::printf("{\"set\": \"%s\", \"case\": \"%" PRId64 " of %" PRId64 " by %" PRId64 " in %" PRId64
              "\", \"error\": %.9g, \"largest\": %.9g, \"alone\": %s, \"digest\": \"%" PRIx64
              "\"}\n",
              each.name, given.rows, given.outputs, given.inputs, given.groups, error, largest,
              alone ? "true" : "false", digest);
}

} // namespace

int main() {
  for (const auto& each : sets()) {
    check(each, Case(64, 16, 2, 1));
    check(each, Case(96, 48, 3, 15));
    check(each, Case(256, 32, 2, 9));
    check(each, Case(1536, 16, 48, 6));
  }
}
