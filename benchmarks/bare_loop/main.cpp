// The least that times a program: a loop over Module::forward. Prints the median in milliseconds.
// Usage: bare_loop PROGRAM INPUT.bin WARMUP ITERATIONS SIZE... (one float32 input of those sizes)

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

using executorch::extension::Module;

int main(int argc, char** argv) {
  std::vector<executorch::aten::SizesType> sizes;
  size_t count = 1;
  for (int i = 5; i < argc; ++i) {
    sizes.push_back(std::atoi(argv[i]));
    count *= sizes.back();
  }
  std::vector<float> data(count);
  std::ifstream(argv[2], std::ios::binary)
      .read(reinterpret_cast<char*>(data.data()), count * sizeof(float));
  auto input = executorch::extension::from_blob(data.data(), sizes);
  Module module(argv[1], Module::LoadMode::Mmap);
  if (!module.forward(input).ok()) {
    return 1;
  }
  for (int i = 0; i < std::atoi(argv[3]); ++i) {
    (void)module.forward(input);
  }
  std::vector<double> times_ms;
  for (int i = 0; i < std::atoi(argv[4]); ++i) {
    const auto started = std::chrono::steady_clock::now();
    (void)module.forward(input);
    const auto ended = std::chrono::steady_clock::now();
    times_ms.push_back(std::chrono::duration<double, std::milli>(ended - started).count());
  }
  std::nth_element(times_ms.begin(), times_ms.begin() + times_ms.size() / 2, times_ms.end());
  std::printf("%.9f\n", times_ms[times_ms.size() / 2]);
}
