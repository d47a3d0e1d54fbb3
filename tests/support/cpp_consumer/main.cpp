// A program that uses the library of two_inputs, as its engineer would write it.
#include <TwoInputs/TwoInputs.h>

#include <cstdio>
#include <future>
#include <utility>

using two_inputs_model::Error;
using two_inputs_model::TwoInputs;

template <typename Values>
static void show(const char* separator, const Values& values) {
  for (const auto value : values) {
    std::printf("%s%g", separator, static_cast<double>(value));
  }
}

template <typename Work>
static void fails(Work work) {
  try {
    work();
    std::puts("nothing failed");
  } catch (const Error& error) {
    std::printf("%s: %s\n", error.kind == Error::Kind::kInput ? "input" : "program", error.what());
  }
}

int main(int, char** argv) {
  TwoInputs first = std::async(std::launch::async, [] { return TwoInputs(); }).get();
  TwoInputs model = std::move(first);
  const std::vector<int64_t> index{5, 0, 3};
  const auto output = model.run({1, 2, 3, 4, 5, 6}, {1, 6}, index);
  std::printf("%lld rows,", static_cast<long long>(output.rows));
  show(" ", output.picked);
  std::printf(", shape");
  show(" ", output.picked_shape);
  std::printf(", next");
  show(" ", output.next);
  std::puts("");
  fails([&] { model.run(std::vector<float>(11), {2, 6}, index); });
  fails([&] { model.run(std::vector<float>(54), {9, 6}, index); });
  fails([] { TwoInputs none("/none.pte"); });
  fails([argv] { TwoInputs other(argv[1]); });
  std::vector<std::future<bool>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::async(std::launch::async, [&model, &index, i] {
      const auto found = model.run(std::vector<float>(6, static_cast<float>(i)), {1, 6}, index);
      return found.picked == std::vector<float>(3, static_cast<float>(i));
    }));
  }
  bool same = true;
  for (auto& call : calls) {
    same = call.get() && same;
  }
  std::printf("4 threads %s\n", same ? "agree" : "differ");
}
