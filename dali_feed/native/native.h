/* What the files of this folder share. They know neither Python nor each other: Python calls them by ctypes, which lets
   go of the interpreter's lock around each call, and every one has a way in Python beside it that does the same. */
#ifndef DALI_FEED_NATIVE_H
#define DALI_FEED_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/* One more whenever a function changes what it takes or gives; library.py says the same number. */
enum { DALI_FEED_NATIVE = 1 };

EXPORTED int dali_feed_native(void);

#endif
