/* Rows of memories that are as large as they say and no larger, so that the sanitizers see a byte too many. Says "done". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { MEMORIES = 3, MOST = 40 };

static uint64_t state = 1;

static int64_t below(int64_t bound)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)bound);
}

static void fail(const char *what)
{
    printf("%s\n", what);
    exit(1);
}

static void once(int64_t width)
{
    uint8_t *memories[MEMORIES];
    int64_t held[MEMORIES], rows = below(MOST);
    int64_t *of = malloc((size_t)rows * 8), *at = malloc((size_t)rows * 8), *size = malloc((size_t)rows * 8);
    uint8_t *out = malloc((size_t)(rows * width));
    for (int k = 0; k < MEMORIES; k++) {
        held[k] = width + below(100);
        memories[k] = malloc((size_t)held[k]);
        for (int64_t i = 0; i < held[k]; i++)
            memories[k][i] = (uint8_t)below(256);
    }
    for (int64_t k = 0; k < rows; k++) {
        of[k] = below(MEMORIES);
        at[k] = below(held[of[k]] - width + 1);
    }
    dali_feed_rows_together((const uint8_t *const *)memories, of, at, rows, width, out);
    for (int64_t k = 0; k < rows; k++)
        if (width && memcmp(out + k * width, memories[of[k]] + at[k], (size_t)width))
            fail("together: other bytes");
    for (int64_t k = 0; k < rows; k++) {
        size[k] = below(width + 1);
        of[k] = size[k] ? of[k] : -1;
        at[k] = size[k] ? held[of[k]] - size[k] : 0; /* up to the last byte */
    }
    dali_feed_rows_padded((const uint8_t *const *)memories, of, at, size, rows, width, out);
    for (int64_t k = 0; k < rows; k++)
        for (int64_t i = 0; i < width; i++)
            if (out[k * width + i] != (i < size[k] ? memories[of[k]][at[k] + i] : 0))
                fail("padded: other bytes");
    for (int64_t k = 0; k < rows; k++) {
        size[k] = size[k] > 18 ? 18 : size[k];
        of[k] = of[k] < 0 ? 0 : of[k];
    }
    int64_t *numbers = malloc((size_t)rows * 8);
    dali_feed_rows_decimals((const uint8_t *const *)memories, of, at, size, rows, numbers); /* of any bytes */
    free(numbers);
    for (int k = 0; k < MEMORIES; k++)
        free(memories[k]);
    free(of), free(at), free(size), free(out);
}

int main(void)
{
    for (int k = 0; k < 300; k++)
        once(below(20)), once(4000 + below(200));
    printf("done\n");
    return 0;
}
