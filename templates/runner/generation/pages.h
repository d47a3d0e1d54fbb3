// Puts weights into huge pages, where Linux has them.
//
// Each token reads all weights. In pages of 4 KiB, the processor looks up an address for each of
// some ten thousand, and its prefetching ends at each: on a virtual machine with an AMD EPYC, a
// token of SmolLM2-135M took 1.4 times as long.
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif
#ifdef __GLIBC__
#include <malloc.h>
#endif

// Makes later allocations contiguous, so that huge pages fit: by default, each large block has its
// own mapping.
inline void allocate_together() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

// Memory of this process that is written and belongs to no file, as ranges of addresses.
inline std::vector<std::pair<uintptr_t, uintptr_t>> own_memory() {
  std::vector<std::pair<uintptr_t, uintptr_t>> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char mode[5] = "";
    unsigned long long inode = 1;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %*s %*s %llu", &begin, &end, mode,
                    &inode) == 4 && inode == 0 && std::string(mode) == "rw-p") {
      found.emplace_back(begin, end);
    }
  }
  return found;
}

#ifdef __linux__
constexpr int kCollapse = 25; // MADV_COLLAPSE, which older headers lack
#endif

// Whether Linux makes huge pages of memory that is there: kernels before 6.1 do not.
inline bool makes_huge_pages() {
#ifdef __linux__
  return madvise(nullptr, 0, kCollapse) == 0;
#else
  return false;
#endif
}

// Makes huge pages of large memory; gives the bytes that are in them.
inline uint64_t use_huge_pages() {
  uint64_t bytes = 0;
#ifdef __linux__
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  std::vector<unsigned char> there(kHuge / static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)));
  for (const auto& [begin, end] : own_memory()) {
    for (uintptr_t at = (begin + kHuge - 1) / kHuge * kHuge; at + kHuge <= end; at += kHuge) {
      void* const page = reinterpret_cast<void*>(at);
      // What was never touched would be filled with zeros.
      if (mincore(page, kHuge, there.data()) == 0 &&
          std::count_if(there.begin(), there.end(), [](auto byte) { return byte & 1; }) >=
              static_cast<int64_t>(there.size() / 10 * 9) &&
          madvise(page, kHuge, kCollapse) == 0) {
        bytes += kHuge;
      }
    }
  }
#endif
  return bytes;
}
