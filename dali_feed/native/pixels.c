/* One image of bytes into its place in a batch: mirrored, in the batch's layout and dtype, in one pass over memory.

   What a byte becomes stands in a table of 256 values for each of the three channels, which the caller has made by
   running its steps on all 256 levels. So the bits are those of the steps, whatever they are.

   The law: it reads the bytes of the image that it is told of and the table, and writes height * width * 3 values,
   nothing between or behind them. A batch is larger than a core's caches: it can be written past them, which saves
   reading each line of memory before it is written.

   What most images are, decoded ones for planes of float32, is computed on processors that divide eight at once, which
   leaves memory alone to wait for. The caller has seen that this makes the floats of the table. */
#include <string.h>

#include "native.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { CHANNELS = 3, LEVELS = 256, WORD = 4, BLOCK = 16 };
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

#define AVX2 __attribute__((target("avx2")))

/* Each channel of 16 pixels that lie beside each other. */
AVX2 INLINE void split(const uint8_t *from, __m128i channels[CHANNELS])
{
    enum { NO = -1 };
    const __m128i a = _mm_loadu_si128((const __m128i *)from), b = _mm_loadu_si128((const __m128i *)(from + 16)),
                  c = _mm_loadu_si128((const __m128i *)(from + 32));
    const __m128i of_a[] = {
        _mm_setr_epi8(0, 3, 6, 9, 12, 15, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO),
        _mm_setr_epi8(1, 4, 7, 10, 13, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO),
        _mm_setr_epi8(2, 5, 8, 11, 14, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO),
    };
    const __m128i of_b[] = {
        _mm_setr_epi8(NO, NO, NO, NO, NO, NO, 2, 5, 8, 11, 14, NO, NO, NO, NO, NO),
        _mm_setr_epi8(NO, NO, NO, NO, NO, 0, 3, 6, 9, 12, 15, NO, NO, NO, NO, NO),
        _mm_setr_epi8(NO, NO, NO, NO, NO, 1, 4, 7, 10, 13, NO, NO, NO, NO, NO, NO),
    };
    const __m128i of_c[] = {
        _mm_setr_epi8(NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, 1, 4, 7, 10, 13),
        _mm_setr_epi8(NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, 2, 5, 8, 11, 14),
        _mm_setr_epi8(NO, NO, NO, NO, NO, NO, NO, NO, NO, NO, 0, 3, 6, 9, 12, 15),
    };
    for (int k = 0; k < CHANNELS; k++)
        channels[k] = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, of_a[k]), _mm_shuffle_epi8(b, of_b[k])),
                                   _mm_shuffle_epi8(c, of_c[k]));
}

/* (level * scale - mean) / std of eight levels; two operations where torch has two, so that each rounds. */
AVX2 INLINE __m256 made_of(__m128i levels, const float *steps, int channel)
{
    const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(levels)), _mm256_set1_ps(steps[0]));
    return _mm256_div_ps(_mm256_sub_ps(scaled, _mm256_set1_ps(steps[1 + channel])),
                         _mm256_set1_ps(steps[1 + CHANNELS + channel]));
}

/* A whole image of pixels beside each other, in rows of whole blocks, into planes of float32 past the caches. */
AVX2 static void compute(const struct image *in, float *to, const float *steps)
{
    const int mirrored = in->pixel < 0;
    const __m128i forward = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                  backward = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                  order = mirrored ? backward : forward;
    for (size_t y = 0; y < in->height; y++)
        for (size_t x = 0; x < in->width; x += BLOCK, to += BLOCK) {
            const uint8_t *row = in->first + (ptrdiff_t)y * in->row;
            __m128i channels[CHANNELS];
            split(row + (ptrdiff_t)(mirrored ? x + BLOCK - 1 : x) * in->pixel, channels);
            for (int c = 0; c < CHANNELS; c++) {
                float *line = to + (size_t)c * in->height * in->width;
                const __m128i levels = _mm_shuffle_epi8(channels[c], order);
                _mm256_stream_ps(line, made_of(levels, steps, c));
                _mm256_stream_ps(line + 8, made_of(_mm_srli_si128(levels, 8), steps, c));
            }
        }
}

INLINE int can_compute(const struct image *in, const uint8_t *to, const float *steps, size_t size, int how)
{
    return steps && size == sizeof(float) && how == PAST_CACHES && in->width % BLOCK == 0 &&
           (uintptr_t)to % sizeof(__m256) == 0 && in->channel == 1 &&
           (in->pixel == CHANNELS || in->pixel == -CHANNELS) && __builtin_cpu_supports("avx2");
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
#else
        (void)last, (void)past;
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
                      size_t width, uint8_t *to, const uint8_t *table, const float *steps, size_t size, int how)
{
    const struct image in = {from, row, pixel, channel, height, width};
#if defined(__SSE2__)
    if (can_compute(&in, to, steps, size, how)) {
        compute(&in, (float *)to, steps);
        _mm_sfence();
        return;
    }
#else
    (void)steps;
#endif
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
