/* Rows that lie anywhere, in memories or in files, put side by side into one output: a batch in one call.

   The law: a row reads its own bytes and writes its own place, nothing else. Rows may overlap each other, never the
   output. */
#define _GNU_SOURCE /* preadv2 */
#include <string.h>
#include <sys/uio.h>

#include "native.h"

/* Bytes of a row from which asking for the next one while it is copied gains more than it costs, and of it the most that
   is asked for. Stores past the caches were slower with whoever reads the batch counted. */
enum { LARGE = 4096, MOST = 8192, LINE = 64 };

static void ask_for(const uint8_t *row, int64_t width)
{
    for (int64_t at = 0; at < width && at < MOST; at += LINE)
        __builtin_prefetch(row + at);
}

/* Row k is the size[k] bytes from byte at[k] of memories[of[k]]; they come end to end. */
void dali_feed_rows_together(const uint8_t *const *memories, const int64_t *of, const int64_t *at, const int64_t *size,
                             int64_t rows, uint8_t *out)
{
    for (int64_t k = 0; k < rows; out += size[k++]) {
        if (k + 1 < rows && size[k + 1] >= LARGE)
            ask_for(memories[of[k + 1]] + at[k + 1], size[k + 1]);
        if (size[k])
            memcpy(out, memories[of[k]] + at[k], (size_t)size[k]);
    }
}

/* Whether text, of 1 to 18 bytes, is decimal digits alone; the number that they are. */
static int decimal(const uint8_t *text, int64_t size, int64_t *number)
{
    uint64_t sum = 0;
    unsigned wrong = 0;
    for (int64_t i = 0; i < size; i++) {
        unsigned digit = text[i] - (unsigned)'0'; /* what is below 0 is far above 9 */
        wrong |= digit > 9;
        sum = sum * 10 + digit;
    }
    *number = (int64_t)sum;
    return !wrong;
}

/* out[k] is the number that the size[k] bytes of row k, 1 to 18, are in decimal digits. Gives the first row that is
   anything else; `rows` where none is. */
int64_t dali_feed_rows_decimals(const uint8_t *const *memories, const int64_t *of, const int64_t *at,
                                const int64_t *size, int64_t rows, int64_t *out)
{
    for (int64_t k = 0; k < rows; k++)
        if (!decimal(memories[of[k]] + at[k], size[k], &out[k]))
            return k;
    return rows;
}

/* Of one read of a file: as many pieces of memory as Linux takes, and bytes between neighbours that are read over,
   since a read more costs more than they do. */
enum { PIECES = 1024, GAP = 4096 };

/* From how many bytes on a read waits for its disk: the kernel reads ahead of it better than advice does. Smaller ones
   take what the page cache has. */
enum { WAITS = 1 << 20 };

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0 /* a system that cannot say what it has: all reads wait */
#endif

/* Row k, of `count`, is size[k] bytes from byte at[k] of the file fds[file[k]], and goes to out + to[k]. Read are `rows`
   of them in `order`, or all as they are where that is none; those of a file without a descriptor, below 0, come not.
   Neighbours in a file, in ascending order with at most GAP bytes between them, are one read. late: the rows that did
   not come whole, of which their files have more to say. done: the numbers of reads, of bytes that came whole, and of
   rows that are late. Gives -1; else the place in `order` of a row that there is not, that lies in none of the files or
   would leave the `room` bytes of out: nothing is read then. */
int64_t dali_feed_rows_fill(const int32_t *fds, int64_t files, const int64_t *file, const int64_t *at,
                            const int64_t *size, const int64_t *to, int64_t count, const int64_t *order, int64_t rows,
                            uint8_t *out, int64_t room, int64_t *late, int64_t *done)
{
    uint8_t junk[GAP]; /* what lies between neighbours */
    struct iovec pieces[PIECES];
    for (int64_t k = 0; k < rows; k++) {
        int64_t row = order ? order[k] : k;
        if (row < 0 || row >= count || (file[row] | at[row] | size[row] | to[row]) < 0 || file[row] >= files ||
            at[row] > INT64_MAX - size[row] || to[row] > room - size[row])
            return k;
    }
    done[0] = done[1] = done[2] = 0;
    for (int64_t first = 0, next; first < rows; first = next) {
        int64_t row = order ? order[first] : first, from = file[row], begin = at[row], end = begin;
        int used = 0;
        for (next = first; next < rows && used + 2 <= PIECES; next++) {
            row = order ? order[next] : next;
            int64_t gap = at[row] - end;
            if (file[row] != from || gap < 0 || gap > GAP)
                break;
            if (gap)
                pieces[used++] = (struct iovec){junk, (size_t)gap};
            if (used && (uint8_t *)pieces[used - 1].iov_base + pieces[used - 1].iov_len == out + to[row])
                pieces[used - 1].iov_len += (size_t)size[row];
            else
                pieces[used++] = (struct iovec){out + to[row], (size_t)size[row]};
            end = at[row] + size[row];
        }
        ssize_t read = -1;
        if (fds[from] >= 0) {
            read = preadv2(fds[from], pieces, used, begin, end - begin > WAITS ? 0 : RWF_NOWAIT);
            done[0]++;
        }
        for (int64_t k = first; k < next; k++) {
            row = order ? order[k] : k;
            if (at[row] + size[row] - begin <= read)
                done[1] += size[row];
            else
                late[done[2]++] = row;
        }
    }
    return -1;
}
