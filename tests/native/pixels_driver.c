/* Runs pixels.c over images of many sizes and layouts, each in memory of exactly its own size, and compares with a loop
   that has nothing to be fast for. Compiled with the sanitizers, which see a byte read or written outside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

enum { LEVELS = 256 };

static int differs(size_t height, size_t width, size_t apart, size_t channels, size_t size, int how, int mirrored)
{
    const size_t wide = width * apart + 2, bytes = height * wide - 2 - (apart - channels);
    const size_t values = height * width * 3;
    uint8_t *image = malloc(bytes), *out = malloc(values * size), *table = malloc(3 * LEVELS * size);
    int wrong = 0;
    for (size_t k = 0; k < bytes; k++)
        image[k] = (uint8_t)(k * 7 + k / 5);
    for (size_t k = 0; k < 3 * LEVELS * size; k++)
        table[k] = (uint8_t)(k * 31 + k / 3);
    const uint8_t *used = size == 1 && mirrored ? NULL : table;
    const ptrdiff_t pixel = (ptrdiff_t)apart, channel = channels == 1 ? 0 : 1;
    dali_feed_pixels(mirrored ? image + (width - 1) * apart : image, (ptrdiff_t)wide, mirrored ? -pixel : pixel,
                     channel, height, width, out, used, NULL, size, how);
    for (size_t c = 0; c < 3; c++)
        for (size_t y = 0; y < height; y++)
            for (size_t x = 0; x < width; x++) {
                const size_t from = mirrored ? width - 1 - x : x;
                const uint8_t *level = image + y * wide + from * apart + c * (size_t)channel;
                const size_t at = how & 1 ? (y * width + x) * 3 + c : (c * height + y) * width + x;
                wrong |= memcmp(out + at * size, used ? used + (c * LEVELS + *level) * size : level, size) != 0;
            }
    free(image);
    free(out);
    free(table);
    return wrong;
}

/* The same for what may be computed: the floats are those of the table. */
static int computes_others(size_t height, size_t width, int mirrored)
{
    static const float steps[] = {1.0f / 255, 0.485f, 0.456f, 0.406f, 0.229f, 0.224f, 0.225f};
    const size_t bytes = height * width * 3;
    uint8_t *image = malloc(bytes);
    float *out = aligned_alloc(64, bytes * sizeof *out), *table = malloc(3 * LEVELS * sizeof *table);
    int wrong = 0;
    for (size_t k = 0; k < bytes; k++)
        image[k] = (uint8_t)(k * 7 + k / 5);
    for (size_t k = 0; k < 3 * LEVELS; k++) {
        const float scaled = (float)(k % LEVELS) * steps[0];
        const float moved = scaled - steps[1 + k / LEVELS];
        table[k] = moved / steps[4 + k / LEVELS];
    }
    const ptrdiff_t pixel = mirrored ? -3 : 3;
    dali_feed_pixels(mirrored ? image + (width - 1) * 3 : image, (ptrdiff_t)width * 3, pixel, 1, height, width,
                     (uint8_t *)out, (const uint8_t *)table, steps, sizeof *out, 2);
    for (size_t k = 0; k < bytes; k++) {
        const size_t x = k % width, y = k / width % height, c = k / width / height;
        const uint8_t level = image[(y * width + (mirrored ? width - 1 - x : x)) * 3 + c];
        wrong |= memcmp(out + k, table + c * LEVELS + level, sizeof *out) != 0;
    }
    free(image);
    free(out);
    free(table);
    return wrong;
}

int main(void)
{
    for (size_t k = 0; k < 32; k++)
        if (computes_others(1 + k / 8, 16 * (1 + k / 2 % 4), k % 2)) {
            printf("computed: other floats\n");
            return 1;
        }
    static const size_t sides[] = {1, 2, 3, 4, 7, 16, 33};
    const size_t count = sizeof sides / sizeof *sides;
    for (size_t k = 0; k < count * count; k++)
        for (size_t size = 1; size <= 4; size *= 2)
            for (int how = 0; how < 4; how++)
                for (int form = 0; form < 8; form++) {
                    const size_t channels = form & 1 ? 3 : 1, apart = channels + (form & 2 ? 1 : 0);
                    if (differs(sides[k / count], sides[k % count], apart, channels, size, how, form >> 2)) {
                        printf("%zu x %zu, size %zu, how %d, form %d: other bytes\n", sides[k / count],
                               sides[k % count], size, how, form);
                        return 1;
                    }
                }
    return dali_feed_native() != DALI_FEED_NATIVE;
}
