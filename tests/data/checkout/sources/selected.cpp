#include "registration.h"

STANDIN_REGISTER("standin::kernels.out")
