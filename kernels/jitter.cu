// jitter: colour adjustments of a batch, each sample's own ones in its own order, in one launch.
//
//   in    images   uint8    (samples, height, width, 3), dense
//   in    steps    float32  (samples, count, 2): what to do (see kind_t) and its factor, in the order in which it is done
//   out   out      uint8    the shape of images
//
// Arithmetic: torchvision v2's on uint8, operation by operation in float32: after every step the values are clamped and
// cut off to whole levels. gray = 0.2989 r + 0.587 g + 0.114 b, two of the sums fused with their product, as torch's
// vectors do. Contrast wants the mean of the image's gray as it enters that step: a pass over the image for each such
// step, which redoes the steps before it, and a sum of whole numbers, so that its order does not matter.
//
// Law: every float operation that can round comes from _numbers.cuh or _colour.cuh; jitter_reference in
// jitter.py gives it bit for bit.
//
// Chosen by the compiler's options:
//   PIXELS    how many pixels a thread does at a time. 4 needs height * width % 4 == 0 and images and out aligned to 4
//             bytes; 1 has no such needs
//   VECTOR    bytes of a store: 16, which needs height * width % 16 == 0 and out aligned to it; 4, or 1 where PIXELS is
//
// A block does an image, so the sum stays within it. Bytes moved: 3 read and 3 written per pixel, and 3 more read for
// each contrast step, by a second pass that finds most of them in the L2 cache.

#include "_numbers.cuh"
#include "_colour.cuh"
#include "_stage.cuh"

#define MAX_STEPS 64
#define MAX_THREADS 1024

enum kind_t { NOTHING = 0, BRIGHTNESS = 1, CONTRAST = 2, SATURATION = 3, HUE = 4, GRAY = 5, GRAY_ROUNDED = 6 };

DEVICE float larger(float a, float b) { return order(a) > order(b) ? a : b; }
DEVICE float smaller(float a, float b) { return order(a) < order(b) ? a : b; }

// The hue turned by `turn` of the circle, -0.5 .. 0.5, in HSV.
DEVICE Pixel turned(const Pixel& p, float turn) {
    const float unit = 1.0f / 255.0f;
    const float r = mul_rn(p.r, unit), g = mul_rn(p.g, unit), b = mul_rn(p.b, unit);
    const float v = larger(r, larger(g, b)), least = smaller(r, smaller(g, b));
    const bool plain = order(v) == order(least);
    const float range = sub_rn(v, least), divisor = plain ? 1.0f : range;
    const float s = div_rn(range, plain ? 1.0f : v);

    // Which channel is the largest decides; of the two others the distances from it.
    const bool is_r = order(v) == order(r), is_g = !is_r && order(v) == order(g);
    const float start = is_r ? 0.0f : is_g ? 2.0f : 4.0f;
    const float plus = sub_rn(v, is_r ? b : is_g ? r : g), minus = sub_rn(v, is_r ? g : is_g ? b : r);
    float h = sub_rn(add_rn(div_rn(plus, divisor), start), div_rn(minus, divisor));
    h = add_rn(mul_rn(h, 1.0f / 6.0f), 1.0f);
    const int circle = order(1.0f);
    h = order(h) >= circle ? sub_rn(h, 1.0f) : h;  // h is below 2 here, and below 1.5 two lines on
    h = add_rn(h, turn);
    h = order(h) >= circle ? sub_rn(h, 1.0f) : order(h) < 0 ? add_rn(h, 1.0f) : h;
    h = clamped(h, 1.0f);  // what a turn beyond its range, or one that is no number, leaves

    const float h6 = mul_rn(h, 6.0f), sector = cut(h6), part = sub_rn(h6, sector);
    const float sf = mul_rn(s, part), without = sub_rn(1.0f, s);
    const float most = level(mul_rn(v, 255.999f));
    const float q = level(mul_rn(clamped(mul_rn(sub_rn(1.0f, sf), v), 1.0f), 255.999f));
    const float t = level(mul_rn(clamped(mul_rn(add_rn(sf, without), v), 1.0f), 255.999f));
    const float low = level(mul_rn(clamped(mul_rn(without, v), 1.0f), 255.999f));
    switch (whole(sector)) {
        case 1: return {q, most, low};
        case 2: return {low, most, t};
        case 3: return {low, q, most};
        case 4: return {t, low, most};
        case 5: return {most, low, q};
        default: return {most, t, low};  // 0, and 6 where a sum was rounded to the whole circle
    }
}

DEVICE Pixel stepped(const Pixel& p, int kind, float factor, float mean) {
    switch (kind) {
        case BRIGHTNESS:
            return {level(mul_rn(p.r, factor)), level(mul_rn(p.g, factor)), level(mul_rn(p.b, factor))};
        case CONTRAST: return blend(p, mean, factor, sub_rn(1.0f, factor));
        case SATURATION: return blend(p, cut(gray(p)), factor, sub_rn(1.0f, factor));
        case HUE: return turned(p, factor);
        case GRAY: {
            const float v = cut(gray(p));
            return {v, v, v};
        }
        case GRAY_ROUNDED: {
            const float v = rounded(gray(p));
            return {v, v, v};
        }
        default: return p;
    }
}

typedef Lane<byte_t, 3 * PIXELS> Raw;

DEVICE Raw read(const byte_t* image, unsigned group) {
    return reinterpret_cast<const Raw*>(image)[group];
}

// The pixels of `raw` behind the first `count` steps.
DEVICE void behind(const Raw& raw, const float* steps, int count, const float* means, Pixel pixel[PIXELS]) {
#pragma unroll
    for (int p = 0; p < PIXELS; ++p) {
        pixel[p] = pixel_at(raw.at + 3 * p);
    }
#pragma unroll 1
    for (int n = 0; n < count; ++n) {
        const int kind = kind_of(steps[2 * n], GRAY_ROUNDED);
        const float factor = steps[2 * n + 1], mean = means[n];
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) pixel[p] = stepped(pixel[p], kind, factor, mean);
    }
}

// The sum over the block's threads; every one of them gets it.
DEVICE offset_t block_sum(offset_t mine, offset_t* parts) {
    parts[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        offset_t column = 0;
        for (unsigned i = threadIdx.x; i < blockDim.x; i += 32) column += parts[i];
        parts[threadIdx.x] = column;
    }
    __syncthreads();
    offset_t total = 0;
    for (unsigned i = 0; i < 32; ++i) total += parts[i];
    __syncthreads();  // so that the next sum may be begun
    return total;
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
jitter(const byte_t* __restrict__ images, byte_t* __restrict__ out, const float* __restrict__ steps, int count,
       int height, int width) {
    __shared__ offset_t parts[MAX_THREADS];
    __shared__ float means[MAX_STEPS];
    __shared__ Stage<byte_t, 3 * PIXELS> stages[MAX_THREADS / 32];
    const unsigned pixels = static_cast<unsigned>(height) * static_cast<unsigned>(width), groups = pixels / PIXELS;
    const byte_t* image = images + 3 * static_cast<offset_t>(blockIdx.x) * pixels;
    byte_t* target = out + 3 * static_cast<offset_t>(blockIdx.x) * pixels;
    const float* own = steps + 2 * static_cast<offset_t>(blockIdx.x) * count;
    Pixel pixel[PIXELS];

    for (unsigned n = threadIdx.x; n < MAX_STEPS; n += blockDim.x) means[n] = 0.0f;
    __syncthreads();
    for (int n = 0; n < count; ++n) {
        if (kind_of(own[2 * n], GRAY_ROUNDED) != CONTRAST) continue;
        offset_t levels = 0;
        for (unsigned group = threadIdx.x; group < groups; group += blockDim.x) {
            behind(read(image, group), own, n, means, pixel);
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) levels += whole(gray(pixel[p]));
        }
        const offset_t total = block_sum(levels, parts);
        if (threadIdx.x == 0) means[n] = div_rn(static_cast<float>(total), static_cast<float>(pixels));
        __syncthreads();
    }

    for (unsigned first = threadIdx.x / 32 * 32; first < groups; first += blockDim.x) {
        const unsigned group = first + threadIdx.x % 32;
        Raw done = {};
        if (group < groups) {
            behind(read(image, group), own, count, means, pixel);
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) {
                done.at[3 * p] = cast(pixel[p].r);
                done.at[3 * p + 1] = cast(pixel[p].g);
                done.at[3 * p + 2] = cast(pixel[p].b);
            }
        }
        const unsigned lanes = groups - first < 32 ? groups - first : 32;
        store_run(target + 3 * PIXELS * static_cast<offset_t>(first), lanes, done, stages[threadIdx.x / 32]);
    }
}
