/* What the files of this folder share. They know neither Python nor each other: Python calls them by ctypes, which lets
   go of the interpreter's lock around each call, and every one has a way in Python beside it that does the same. */
#ifndef DALI_FEED_NATIVE_H
#define DALI_FEED_NATIVE_H

#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/* One more whenever a function changes what it takes or gives; library.py says the same number. */
enum { DALI_FEED_NATIVE = 8 };

EXPORTED int dali_feed_native(void);

/* pixels.c. `from` is the first pixel's first channel; the three distances are in bytes, of either sign. `table`:
   3 x 256 values of `size` bytes, 1, 2 or 4; none: values are the bytes. `steps`, or none: a scale, three means and three
   divisors that make the table's floats. `how`: 1 channels last, 2 past the caches. */
EXPORTED void dali_feed_pixels(const uint8_t *from, ptrdiff_t row, ptrdiff_t pixel, ptrdiff_t channel, size_t height,
                               size_t width, uint8_t *to, const uint8_t *table, const float *steps, size_t size,
                               int how);

/* rows.c */
EXPORTED void dali_feed_rows_together(const uint8_t *const *memories, const int64_t *of, const int64_t *at,
                                      const int64_t *size, int64_t rows, uint8_t *out);
EXPORTED int64_t dali_feed_rows_decimals(const uint8_t *const *memories, const int64_t *of, const int64_t *at,
                                         const int64_t *size, int64_t rows, int64_t *out);
EXPORTED int64_t dali_feed_rows_fill(const int32_t *fds, int64_t files, const int64_t *file, const int64_t *at,
                                     const int64_t *size, const int64_t *to, int64_t count, const int64_t *order,
                                     int64_t rows, uint8_t *out, int64_t room, int64_t *late, int64_t *done);

#endif
