#define _GNU_SOURCE
#include <time.h>

long elapsed_ns(void) {
  struct timespec now;
  return clock_gettime(CLOCK_MONOTONIC, &now) == 0 ? now.tv_nsec : -1;
}
