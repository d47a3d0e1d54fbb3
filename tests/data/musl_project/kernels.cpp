#include "registry.h"

#include <cassert>
#include <cstdlib>
#include <stdexcept>

// As PyTorch's headers declare it.
extern "C" void __assert_fail(const char *assertion, const char *file, unsigned int line,
                              const char *function) noexcept __attribute__((__noreturn__));

// `uint` is no word of C++; glibc's <cstdlib> brings it.
static uint checked(uint value) {
  assert(value < 100);
  if (value > 10) throw std::out_of_range("more than ten");
  return value + 1;
}

static bool registered = [] {
  registry().emplace_back("increment", checked);
  return true;
}();
