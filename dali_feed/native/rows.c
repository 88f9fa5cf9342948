/* Rows that lie anywhere, copied side by side into one output: a batch in one call.

   The law: a row reads its own bytes and writes its own place, nothing else. Rows may overlap each other, never the
   output. */
#include <string.h>

#include "native.h"

/* Bytes of a row from which asking for the next one while it is copied gains more than it costs, and of it the most that
   is asked for. Stores past the caches were slower with whoever reads the batch counted. */
enum { LARGE = 4096, MOST = 8192, LINE = 64 };

static void ask_for(const uint8_t *row, int64_t width)
{
    for (int64_t at = 0; at < width && at < MOST; at += LINE)
        __builtin_prefetch(row + at);
}

/* Row k is the `width` bytes from byte at[k] of memories[of[k]]. */
void dali_feed_rows_together(const uint8_t *const *memories, const int64_t *of, const int64_t *at, int64_t rows,
                             int64_t width, uint8_t *out)
{
    for (int64_t k = 0; k < rows; k++) {
        if (width >= LARGE && k + 1 < rows)
            ask_for(memories[of[k + 1]] + at[k + 1], width);
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

/* out[k] is the number that the size[k] bytes of row k, 1 to 18, are in decimal digits. Gives the first row that is
   anything else; `rows` where none is. */
int64_t dali_feed_rows_decimals(const uint8_t *const *memories, const int64_t *of, const int64_t *at,
                                const int64_t *size, int64_t rows, int64_t *out)
{
    for (int64_t k = 0; k < rows; k++)
        if (!dali_feed_decimal(memories[of[k]] + at[k], size[k], &out[k]))
            return k;
    return rows;
}
