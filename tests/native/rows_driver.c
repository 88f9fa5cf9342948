/* Rows of memories that are as large as they say and no larger, so that the sanitizers see a byte too many. Says "done". */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    for (int64_t k = 0; k < rows; k++)
        size[k] = below(4) ? below(width + 1) : width;
    dali_feed_rows_together((const uint8_t *const *)memories, of, at, size, rows, out);
    uint8_t *next = out;
    for (int64_t k = 0; k < rows; next += size[k++])
        if (size[k] && memcmp(next, memories[of[k]] + at[k], (size_t)size[k]))
            fail("together: other bytes");
    for (int64_t k = 0; k < rows; k++) {
        size[k] = below(width < 18 ? width + 1 : 19);
        at[k] = held[of[k]] - size[k]; /* up to the last byte */
    }
    int64_t *numbers = malloc((size_t)rows * 8);
    dali_feed_rows_decimals((const uint8_t *const *)memories, of, at, size, rows, numbers); /* of any bytes */
    free(numbers);
    for (int k = 0; k < MEMORIES; k++)
        free(memories[k]);
    free(of), free(at), free(size), free(out);
}

/* Rows of two files of so many bytes each, with no space between in `out`: neighbours near and far, and over the end. */
static void from_files(int64_t held, int64_t rows, int64_t step)
{
    uint8_t *whole[2];
    int files[2];
    for (int f = 0; f < 2; f++) {
        whole[f] = malloc((size_t)held);
        files[f] = memfd_create("rows", 0);
        for (int64_t i = 0; i < held; i++)
            whole[f][i] = (uint8_t)below(256);
        if (write(files[f], whole[f], (size_t)held) != held)
            fail("memfd");
    }
    int64_t *of = malloc((size_t)rows * 8), *at = malloc((size_t)rows * 8), *size = malloc((size_t)rows * 8);
    int64_t *to = malloc((size_t)rows * 8), *order = malloc((size_t)rows * 8), *late = malloc((size_t)rows * 8);
    int64_t total = 0, next = 0, done[3], missing = 0;
    for (int64_t k = 0; k < rows; k++) {
        of[k] = below(20) ? (k ? of[k - 1] : 0) : below(2);
        at[k] = next + below(4) * below(step);
        size[k] = below(step);
        next = below(30) ? at[k] + size[k] : below(held);
        to[k] = total;
        order[k] = below(10) ? k : below(rows); /* some twice, and others not at all */
        total += size[k];
    }
    uint8_t *out = malloc((size_t)total);
    int sorted = below(2) == 0;
    if (dali_feed_rows_fill(files, 2, of, at, size, to, rows, sorted ? NULL : order, rows, out, total, late, done) != -1)
        fail("fill: rows that are right are refused");
    if (done[0] > rows || done[2] > rows)
        fail("fill: more reads, or late rows, than rows");
    for (int64_t k = 0; k < rows; k++) {
        int64_t row = sorted ? k : order[k];
        if (missing < done[2] && late[missing] == row)
            missing++;
        else if (at[row] + size[row] > held + (size[row] ? 0 : at[row]))
            fail("fill: bytes that are not there");
        else if (size[row] && memcmp(out + to[row], whole[of[row]] + at[row], (size_t)size[row]))
            fail("fill: other bytes");
    }
    if (missing != done[2])
        fail("fill: late rows that were not asked for");
    if (rows)
        to[0] += total + 1 - size[0];
    if (rows && dali_feed_rows_fill(files, 2, of, at, size, to, rows, NULL, rows, out, total, late, done) != 0)
        fail("fill: a row behind the end is taken");
    for (int f = 0; f < 2; f++)
        free(whole[f]), close(files[f]);
    free(of), free(at), free(size), free(to), free(order), free(late), free(out);
}

int main(void)
{
    for (int k = 0; k < 300; k++)
        once(below(20)), once(4000 + below(200));
    for (int k = 0; k < 50; k++)
        from_files(1 + below(100000), below(200), 1 + below(3000));
    from_files(3 << 20, 2500, 600); /* more neighbours than one read takes */
    from_files(3 << 20, 1, 3 << 20);
    printf("done\n");
    return 0;
}
