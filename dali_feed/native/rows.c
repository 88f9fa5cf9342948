/* Rows that lie anywhere, copied side by side into one output: a batch in one call.

   The law: a row reads its own bytes and writes its own place, nothing else. Rows may overlap each other, never the
   output. */
#include <string.h>

#include "native.h"

/* Bytes of a row from which asking for the next one's first lines while it is copied gains more than it costs; the
   processor finds the lines behind those by itself. */
enum { LARGE = 4096, AHEAD = 4, LINE = 64 };

static void ask_for(const uint8_t *row)
{
    for (int line = 0; line < AHEAD; line++)
        __builtin_prefetch(row + line * LINE);
}

/* Row k is the `width` bytes from byte at[k] of memories[of[k]]. */
void dali_feed_rows_together(const uint8_t *const *memories, const int64_t *of, const int64_t *at, int64_t rows,
                             int64_t width, uint8_t *out)
{
    for (int64_t k = 0; k < rows; k++) {
        if (width >= LARGE && k + 1 < rows)
            ask_for(memories[of[k + 1]] + at[k + 1]);
        memcpy(out + k * width, memories[of[k]] + at[k], (size_t)width);
    }
}

/* Row k is size[k] of them, 0 to `width`, and zeros behind; one of no bytes may lie nowhere. */
void dali_feed_rows_padded(const uint8_t *const *memories, const int64_t *of, const int64_t *at, const int64_t *size,
                           int64_t rows, int64_t width, uint8_t *out)
{
    for (int64_t k = 0; k < rows; k++) {
        uint8_t *row = out + k * width;
        if (size[k])
            memcpy(row, memories[of[k]] + at[k], (size_t)size[k]);
        memset(row + size[k], 0, (size_t)(width - size[k]));
    }
}
