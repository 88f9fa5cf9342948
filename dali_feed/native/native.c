/* Which version of these functions was compiled: a library of another one is not used. */
#include "native.h"

int dali_feed_native(void) { return DALI_FEED_NATIVE; }
