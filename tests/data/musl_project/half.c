#include <arm_neon.h>

float half_sum(float a, float b) {
  float16x8_t sum = vaddq_f16(vdupq_n_f16((float16_t)a), vdupq_n_f16((float16_t)b));
  return (float)vgetq_lane_f16(sum, 0);
}
