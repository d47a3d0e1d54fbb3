#include "registration.h"

STANDIN_REGISTER("standin::quantized.out")
