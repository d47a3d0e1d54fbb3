// XNNPACK's backend catches where it packs weights.
#include <new>

[[maybe_unused]] static bool standin_allocates() {
  try {
    delete new int;
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}
