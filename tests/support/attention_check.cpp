// Checks the attention kernel on this processor, without ExecuTorch. A line of JSON for each case:
//
//   error: the largest difference to a softmax in doubles, of what the cache has
//   lost: that of the cache to the numbers that were put into it, and so the cache's own error
//   largest: of the outputs
//   alone: whether each token's outputs are, bit by bit, those of a call with the token alone
//   digest: of the outputs' bits
//
// Numbers are made of whole ones, so that they are the same with each C library.
#include "compute.cpp"

#include <cstdio>
#include <string>

using namespace etdeploy;

namespace {

struct Case {
  const char* name;
  int64_t heads, groups, tokens, key_size, value_size, places, position, window, sinks = 0;
};

// Few rows of a key head and many, one token, few and many; blocks that are not full; a ring.
constexpr Case kCases[] = {
    {"one token", 9, 3, 1, 64, 64, 400, 333, 0},
    {"one head each", 4, 4, 1, 80, 96, 150, 127, 0},
    {"many heads", 14, 2, 1, 128, 64, 100, 98, 0},
    {"few tokens", 9, 3, 5, 64, 64, 400, 300, 0},
    {"few tokens, few rows", 2, 2, 3, 32, 48, 400, 250, 0},
    {"sixteen tokens in a ring", 4, 2, 16, 32, 32, 96, 500, 40},
    {"a prompt", 4, 2, 40, 64, 64, 128, 70, 0},
    {"no multiple of 16", 4, 2, 1, 24, 20, 128, 70, 0},
    {"rows of any size", 4, 2, 2, 7, 5, 128, 70, 0},
    {"one token behind sinks", 9, 3, 1, 64, 64, 132, 777, 100, 4},
    {"sixteen tokens behind sinks", 4, 2, 16, 32, 32, 100, 500, 40, 4},
    {"few tokens whose window leaves the sinks", 4, 2, 6, 32, 32, 100, 40, 40, 4},
    {"few tokens, the first of them sinks", 4, 2, 6, 32, 32, 100, 1, 40, 4},
    {"many sinks", 4, 2, 3, 32, 32, 264, 2000, 64, 130},
    {"a prompt from the sinks on", 4, 2, 40, 64, 64, 132, 2, 24, 4},
};

class Numbers {
 public:
  // About normally distributed, with a variance of 1.
  float next() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<float>(state_ >> 48) * 0x1p-16f;
    }
    return sum;
  }

 private:
  uint64_t state_ = 1;
};

// Rows of a cache, and the numbers that they stand for.
struct Rows {
  std::vector<float> exact, kept;
  std::vector<uint8_t> bytes;
  int64_t width;

  Rows(Format format, int64_t rows, int64_t size, Numbers& numbers) {
    width = packed_size(format, size);
    const int64_t row_bytes =
        width * (format == Format::kByte ? 1 : format == Format::kHalf ? 2 : 4);
    exact.resize(rows * size);
    kept.resize(rows * size);
    bytes.resize(rows * row_bytes);
    for (int64_t row = 0; row < rows; ++row) {
      float* const numbers_of_row = exact.data() + row * size;
      for (int64_t i = 0; i < size; ++i) {
        numbers_of_row[i] = numbers.next() * (1 + 0.25f * (row % 5)); // rows have different scales
      }
      uint8_t* const to = bytes.data() + row * row_bytes;
      float* const floats = kept.data() + row * size;
      if (format == Format::kByte) {
        auto* const packed = reinterpret_cast<int8_t*>(to);
        pack_bytes(numbers_of_row, size, packed);
        unpack_bytes<1>(packed, width, 1, size, true, floats);
      } else if (format == Format::kHalf) {
        auto* const packed = reinterpret_cast<uint16_t*>(to);
        pack_halves(numbers_of_row, size, packed);
        unpack_halves<1>(packed, width, 1, size, floats);
      } else {
        std::memcpy(to, numbers_of_row, row_bytes);
        std::copy_n(numbers_of_row, size, floats);
      }
    }
  }
};

// The outputs in doubles.
std::vector<double> reference(const Attention& a, const float* keys, const float* values) {
  std::vector<double> out(a.tokens * a.heads * a.value_size);
  for (int64_t token = 0; token < a.tokens; ++token) {
    for (int64_t head = 0; head < a.heads; ++head) {
      const int64_t group = head / a.heads_per_group(), end = a.seen_end(token);
      const float* const query = a.query + head * a.query_strides.head + token * a.query_strides.row;
      // Sinks, and then a window over a ring of the places behind them.
      std::vector<int64_t> seen;
      for (int64_t position = 0; position < end; ++position) {
        const bool is_sink = position < a.sinks;
        if (is_sink || a.window == 0 || position > a.positions[token] - a.window) {
          seen.push_back(is_sink ? position
                                 : a.sinks + (position - a.sinks) % (a.places - a.sinks));
        }
      }
      std::vector<double> scores;
      for (const int64_t place : seen) {
        const float* const key = keys + (group * a.places + place) * a.key_size;
        double score = 0;
        for (int64_t i = 0; i < a.key_size; ++i) {
          score += static_cast<double>(query[i]) * key[i];
        }
        scores.push_back(score * a.scale);
      }
      const double high = *std::max_element(scores.begin(), scores.end());
      double weights = 0;
      double* const to = out.data() + (token * a.heads + head) * a.value_size;
      for (size_t j = 0; j < scores.size(); ++j) {
        const float* const value = values + (group * a.places + seen[j]) * a.value_size;
        const double weight = std::exp(scores[j] - high);
        weights += weight;
        for (int64_t i = 0; i < a.value_size; ++i) {
          to[i] += weight * value[i];
        }
      }
      for (int64_t i = 0; i < a.value_size; ++i) {
        to[i] /= weights;
      }
    }
  }
  return out;
}

const char* instructions() {
#if defined(__aarch64__) && defined(ETDEPLOY_DOTPROD)
  const auto found = attend_for<int8_t>(64, 64);
  return found == attend_with<4, int8_t, I8mm>  ? "i8mm"
      : found == attend_with<4, int8_t, Dotprod> ? "dotprod"
                                                 : "neon";
#else
  return "floats";
#endif
}

bool check(const Case& c, Format format, const char* format_name) {
  Numbers numbers;
  std::vector<float> query(c.heads * c.tokens * c.key_size);
  for (float& number : query) {
    number = 2 * numbers.next();
  }
  const Rows keys(format, c.groups * c.places, c.key_size, numbers);
  const Rows values(format, c.groups * c.places, c.value_size, numbers);
  std::vector<int64_t> positions;
  for (int64_t token = 0; token < c.tokens; ++token) {
    positions.push_back(c.position + token);
  }
  Attention a = {query.data(),
                 {keys.bytes.data(), format},
                 {values.bytes.data(), format},
                 positions.data(),
                 c.heads,
                 c.groups,
                 c.tokens,
                 c.places,
                 c.key_size,
                 c.value_size,
                 c.window,
                 1 / std::sqrt(static_cast<float>(c.key_size)),
                 0,
                 {c.tokens * c.key_size, c.key_size},
                 {c.places * keys.width, keys.width},
                 {c.places * values.width, values.width},
                 nullptr,
                 true,
                 c.sinks};
  const int64_t row = c.heads * c.value_size;
  std::vector<float> out(c.tokens * row), single(row);
  const auto kept = reference(a, keys.kept.data(), values.kept.data());
  const auto exact = reference(a, keys.exact.data(), values.exact.data());
  if (!compute(a, out.data())) {
    return false;
  }
  double error = 0, lost = 0, largest = 0;
  uint64_t digest = 1469598103934665603u;
  for (size_t i = 0; i < out.size(); ++i) {
    error = std::max(error, std::isfinite(out[i]) ? std::fabs(out[i] - kept[i]) : INFINITY);
    lost = std::max(lost, std::fabs(kept[i] - exact[i]));
    largest = std::max(largest, std::fabs(kept[i]));
    uint32_t bits;
    std::memcpy(&bits, &out[i], sizeof bits);
    digest = (digest ^ bits) * 1099511628211u;
  }
  bool alone = true;
  a.tokens = 1;
  for (int64_t token = 0; token < c.tokens; ++token) {
    a.query = query.data() + token * c.key_size;
    a.positions = positions.data() + token;
    alone = alone && compute(a, single.data()) &&
        std::memcmp(single.data(), out.data() + token * row, row * sizeof(float)) == 0;
  }
  std::printf("{\"case\": \"%s\", \"cache\": \"%s\", \"error\": %g, \"lost\": %g, \"largest\": %g, "
              "\"alone\": %s, \"digest\": \"%016llx\", \"instructions\": \"%s\"}\n",
              c.name, format_name, error, lost, largest, alone ? "true" : "false",
              static_cast<unsigned long long>(digest), instructions());
  return true;
}

} // namespace

int main() {
  for (const Case& c : kCases) {
    if (!check(c, Format::kFloat, "float32") || !check(c, Format::kHalf, "float16") ||
        !check(c, Format::kByte, "int8")) {
      return 1;
    }
  }
}
