/* One image of bytes into its place in a batch: mirrored, in the batch's layout and dtype, in one pass over memory.

   What a byte becomes stands in a table of 256 values for each of the three channels, which the caller has made by
   running its steps on all 256 levels. So the bits are those of the steps, whatever they are.

   The law: it reads the bytes of the image that it is told of and the table, and writes height * width * 3 values,
   nothing between or behind them. A batch is larger than a core's caches: it can be written past them, which saves
   reading each line of memory before it is written. */
#include <string.h>

#include "native.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { CHANNELS = 3, LEVELS = 256, WORD = 4 };
enum { CHANNELS_LAST = 1, PAST_CACHES = 2 };

/* Distances in bytes, of either sign: from a row, pixel or channel to the next. */
struct image {
    const uint8_t *first;
    ptrdiff_t row, pixel, channel;
    size_t height, width;
};

struct place {
    uint8_t *first;
    ptrdiff_t row, pixel, channel;
};

/* The address of what a level becomes; without a table it is what it was. */
INLINE const uint8_t *value_at(const uint8_t *table, const uint8_t *level, size_t channel, size_t size)
{
    return table ? table + (channel * LEVELS + *level) * size : level;
}

/* `size`, of a value, is known to the compiler here and below, so that a copy is one instruction. */
INLINE void pixels(uint8_t *to, const struct place *out, const uint8_t *from, const struct image *in, size_t count,
                   const uint8_t *table, size_t size)
{
    for (; count; count--, to += out->pixel, from += in->pixel)
        for (int c = 0; c < CHANNELS; c++)
            memcpy(to + c * out->channel, value_at(table, from + c * in->channel, (size_t)c, size), size);
}

#if defined(__SSE2__)

/* The values of a word, in the order of memory. */
INLINE uint32_t value(const uint8_t *at, size_t size)
{
    uint32_t word = 0;
    memcpy(&word, at, size);
    return word;
}

/* As many pixels of a row as fill words, a word for each channel, past the caches; how many that were. */
INLINE size_t words_past_caches(uint8_t *to, const struct place *out, const uint8_t *from, const struct image *in,
                                const uint8_t *table, size_t size, int last)
{
    const size_t each = WORD / size; /* values in a word, and pixels in three words */
    const size_t count = in->width - in->width % each;
    for (size_t x = 0; x < count; x += each, to += (ptrdiff_t)each * out->pixel) {
        uint32_t words[CHANNELS] = {0, 0, 0};
        for (size_t k = 0; k < each; k++, from += in->pixel)
            for (size_t c = 0; c < CHANNELS; c++) {
                const size_t n = last ? k * CHANNELS + c : c * each + k;
                words[n / each] |= value(value_at(table, from + (ptrdiff_t)c * in->channel, c, size), size)
                                   << (n % each * size * 8);
            }
        for (int k = 0; k < CHANNELS; k++)
            _mm_stream_si32((int *)(to + (last ? k * WORD : k * out->channel)), (int)words[k]);
    }
    return count;
}

#endif

INLINE void write(const struct image *in, const struct place *out, const uint8_t *table, size_t size, int last,
                  int past)
{
    for (size_t y = 0; y < in->height; y++) {
        const uint8_t *from = in->first + (ptrdiff_t)y * in->row;
        uint8_t *to = out->first + (ptrdiff_t)y * out->row;
        size_t done = 0;
#if defined(__SSE2__)
        if (past)
            done = words_past_caches(to, out, from, in, table, size, last);
#endif
        if (done < in->width)
            pixels(to + (ptrdiff_t)done * out->pixel, out, from + (ptrdiff_t)done * in->pixel, in, in->width - done,
                   table, size);
    }
}

/* Each layout by code of its own: what is known to the compiler is not asked for at each pixel. */
INLINE void sized(const struct image *in, uint8_t *to, const uint8_t *table, size_t size, int how)
{
    const ptrdiff_t wide = (ptrdiff_t)(in->width * size), plane = (ptrdiff_t)in->height * wide;
    const struct place planes = {to, wide, (ptrdiff_t)size, plane};
    const struct place last = {to, CHANNELS * wide, CHANNELS * (ptrdiff_t)size, (ptrdiff_t)size};
    if ((how & CHANNELS_LAST) && (how & PAST_CACHES))
        write(in, &last, table, size, 1, 1);
    else if (how & CHANNELS_LAST)
        write(in, &last, table, size, 1, 0);
    else if (how & PAST_CACHES)
        write(in, &planes, table, size, 0, 1);
    else
        write(in, &planes, table, size, 0, 0);
}

void dali_feed_pixels(const uint8_t *from, ptrdiff_t row, ptrdiff_t pixel, ptrdiff_t channel, size_t height,
                      size_t width, uint8_t *to, const uint8_t *table, size_t size, int how)
{
    const struct image in = {from, row, pixel, channel, height, width};
    const size_t wide = width * size * (how & CHANNELS_LAST ? CHANNELS : 1);
    if (wide % WORD || (uintptr_t)to % WORD) /* a word in two lines is dear */
        how &= ~PAST_CACHES;
    if (table && size == 4)
        sized(&in, to, table, 4, how);
    else if (table && size == 2)
        sized(&in, to, table, 2, how);
    else if (table)
        sized(&in, to, table, 1, how);
    else if ((how & CHANNELS_LAST) && pixel == CHANNELS && channel == 1)
        for (size_t y = 0; y < height; y++)
            memcpy(to + y * wide, from + (ptrdiff_t)y * row, wide);
    else
        sized(&in, to, NULL, 1, how);
#if defined(__SSE2__)
    if (how & PAST_CACHES)
        _mm_sfence(); /* other threads see it as they see all else */
#endif
}
