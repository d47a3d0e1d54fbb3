#include "registry.h"

#include <atomic>
#include <cstdio>
#include <exception>
#include <thread>

extern "C" float half_sum(float a, float b);
extern "C" long elapsed_ns(void);
extern "C" int assembly_add(int a, int b);

std::vector<Kernel> &registry() {
  static std::vector<Kernel> kernels;
  return kernels;
}

int main(int argc, char **) {
  for (auto &[name, kernel] : registry()) {
    std::printf("%s %u\n", name.c_str(), kernel(4));
    try {
      kernel(11);
    } catch (const std::exception &error) {
      std::printf("caught: %s\n", error.what());
    }
  }
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back([&] {
      // More than the 128 KB that musl gives a thread by default.
      volatile char stack[512 * 1024];
      stack[0] = stack[sizeof stack - 1] = 1;
      done += stack[0];
    });
  }
  for (auto &thread : threads) thread.join();
  std::printf("threads %d, assembly %d, clock %d\n", done.load(), assembly_add(2, 3), elapsed_ns() >= 0);
  if (argc > 1) std::printf("half %.1f\n", half_sum(1.5f, 2.0f));
}
