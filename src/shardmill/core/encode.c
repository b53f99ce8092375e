#include "core.h"

int32_t sm_abi(void) { return SM_ABI; }
