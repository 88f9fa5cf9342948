// augment: torchvision's AutoAugment and its kind, each sample's own operations in its own order, in one launch.
//
//   in    images   uint8    (samples, height, width, 3), dense
//   in    rows     float32  (samples, chains, stages, 12): what each stage does, see Row
//   in    weights  float32  (samples, 1 + chains) or null: shares of the image, and of what each chain makes of it
//   work  spare    uint8    so many times images: one more than chains with weights; else 1, or null for one stage
//   out   out      uint8    the shape of images
//
// Arithmetic: torchvision v2's on uint8, whose result is whole levels after every stage. What becomes of a value by
// itself and its channel is looked up in a table of 3 x 256 bytes, made once the image's levels are counted where that
// needs them; the counts are whole numbers, so that their order does not matter. Where a pixel comes from is torch's
// grid, a product of matrices in the order of MKL with AVX-512, and the four around it are summed in torch's order.
//
// Law: every float operation that can round comes from _numbers.cuh or _colour.cuh; tests/kit/augmented.py gives it bit
// for bit. No number in rows makes it read or write outside of its arrays.
//
// Chosen by the compiler's options:
//   VECTOR    bytes of a store: 16, which needs height * width % 16 == 0 and out and spare aligned to it; 4 alike, or 1
//
// A block does an image, so that stages are ordered within it, and all its threads do the same. Bytes moved, per pixel
// and stage that does something: 3 read and 3 written, and 3 more read where levels are counted; with weights
// 3 + 3 * chains read and 3 written at the end. Those of an image before find most of it in the L2 cache.

#include "_numbers.cuh"
#include "_colour.cuh"
#include "_stage.cuh"

#define MAX_THREADS 1024
#define LEVELS 256
#define FAR 2147483646           // beyond every image
#define COPIES 8                 // of the counts, so that lanes with the same level seldom meet
#define COUNTS (3 * LEVELS + 1)  // of a copy, so that those of a level lie in different banks

enum kind_t {
    NOTHING = 0, BRIGHTNESS = 1, CONTRAST = 2, SATURATION = 3, SHARPNESS = 4, POSTERIZE = 5, SOLARIZE = 6,
    AUTOCONTRAST = 7, EQUALIZE = 8, INVERT = 9, NEAREST = 10, BILINEAR = 11, FILLED = 12
};

OF_ONE(floored, "cvt.rmi.f32.f32", floorf(a))

// A whole number as an index, to which 1 can be added; what is no number is 0.
DEVICE int index(float v) {
#ifdef __CUDA_ARCH__
    int result;
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(result) : "f"(v));
    return result > FAR ? FAR : result;
#else
    return v >= 2147483648.0f ? FAR : v <= -2147483648.0f ? -FAR - 2 : static_cast<int>(v == v ? v : 0.0f);
#endif
}

// One stage of a chain. A flip that is not 0 is done before it: its image is read mirrored.
struct Row {
    float kind, flip_x, flip_y;
    float number[6];  // colours: the factor, and 1 minus it. Posterize: the bits that stay. Solarize: the threshold.
                      // NEAREST and on: x and y of the grid, -1 .. 1, by x, y and 1 from the middle
    float fill[3];    // levels of what comes from outside of the image
};

// An image as it is to be seen.
struct View {
    const byte_t* image;
    int height, width;
    bool flip_x, flip_y;

    __device__ __forceinline__ const byte_t* at(int y, int x) const {
        const offset_t row = flip_y ? height - 1 - y : y, column = flip_x ? width - 1 - x : x;
        return image + 3 * (row * width + column);
    }
};

// What a channel's counts say: the lowest and the highest level, their sum, and Equalize's step.
struct Channel {
    unsigned low, high, step;
    offset_t sum;
};

// By all threads: how many pixels have each level of each channel, or of gray, in the first copy of `counts`.
DEVICE void count(const byte_t* image, unsigned pixels, bool of_gray, unsigned* counts) {
    unsigned* mine = counts + COUNTS * (threadIdx.x % COPIES);
    for (unsigned i = threadIdx.x; i < COPIES * COUNTS; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (unsigned pixel = threadIdx.x; pixel < pixels; pixel += blockDim.x) {
        const byte_t* at = image + 3 * static_cast<offset_t>(pixel);
        if (of_gray) {
            atomicAdd(mine + whole(gray(pixel_at(at))), 1u);
        } else {
            for (unsigned c = 0; c < 3; ++c) atomicAdd(mine + LEVELS * c + at[c], 1u);
        }
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < 3 * LEVELS; i += blockDim.x)
        for (unsigned copy = 1; copy < COPIES; ++copy) counts[i] += counts[COUNTS * copy + i];
    __syncthreads();
}

// A channel's counts become those of all levels below each.
DEVICE Channel summed(unsigned* counts, unsigned pixels) {
    Channel known = {LEVELS, 0, 0, 0};
    unsigned before = 0, most = 0;
    for (unsigned v = 0; v < LEVELS; ++v) {
        const unsigned own = counts[v];
        counts[v] = before;
        before += own;
        known.sum += static_cast<offset_t>(v) * own;
        if (own == 0) continue;
        if (known.low == LEVELS) known.low = v;
        known.high = v;
        most = own;
    }
    known.step = (pixels - most) / (LEVELS - 1);
    return known;
}

// What becomes of level v of a channel; `below`: how many of its pixels are darker.
DEVICE float looked_up(int kind, const Row& row, unsigned v, const Channel& known, unsigned below, float mean) {
    const float value = static_cast<float>(v);
    switch (kind) {
        case BRIGHTNESS: return level(mul_rn(value, row.number[0]));
        case CONTRAST: return blend(value, mean, row.number[0], row.number[1]);
        case POSTERIZE: return static_cast<float>(v & whole(level(row.number[0])));
        case SOLARIZE: return order(value) >= order(row.number[0]) ? static_cast<float>(255 - v) : value;
        case AUTOCONTRAST: {
            if (known.high <= known.low) return value;
            const float range = mul_rn(static_cast<float>(known.high - known.low), 1.0f / 255.0f);
            return level(div_rn(sub_rn(value, static_cast<float>(known.low)), range));
        }
        case EQUALIZE: {
            if (known.step == 0) return value;
            const unsigned equal = (below + known.step / 2) / known.step;
            return static_cast<float>(equal < LEVELS ? equal : LEVELS - 1);
        }
        case INVERT: return static_cast<float>(255 - v);
        default: return value;
    }
}

// Sharpness blends with a blur that is rounded to whole levels; pixels of the border stay.
DEVICE Pixel sharpened(const View& from, int y, int x, float rest) {
    const Pixel p = pixel_at(from.at(y, x));
    if (y == 0 || x == 0 || y == from.height - 1 || x == from.width - 1) return p;
    unsigned r = 0, g = 0, b = 0;
    for (int dy = -1; dy <= 1; ++dy)
        for (int dx = -1; dx <= 1; ++dx) {
            const byte_t* at = from.at(y + dy, x + dx);
            const unsigned times = dy == 0 && dx == 0 ? 5 : 1;
            r += times * at[0];
            g += times * at[1];
            b += times * at[2];
        }
    const Pixel blurred = {static_cast<float>((r + 6) / 13), static_cast<float>((g + 6) / 13),
                           static_cast<float>((b + 6) / 13)};
    return by_channel(p, blurred, [&](float v, float blur) { return level(fma_rn(sub_rn(blur, v), rest, v)); });
}

// The place in pixels, of an edge of `size`, that the grid names.
DEVICE float place(const float* number, float x, float y, int size) {
    const float grid = add_rn(fma_rn(y, number[1], mul_rn(x, number[0])), number[2]);
    return fma_rn(add_rn(grid, 1.0f), mul_rn(static_cast<float>(size), 0.5f), -0.5f);
}

// From the middle of an edge of `size`: exact.
DEVICE float from_middle(int at, int size) { return mul_rn(static_cast<float>(2 * at + 1 - size), 0.5f); }

struct Sum {
    Pixel pixel;
    float inside;
};

// One of the four pixels around a place, with its weight; outside of the image there is nothing.
DEVICE Sum added(const Sum& sum, const View& from, int y, int x, float weight) {
    if (y < 0 || x < 0 || y >= from.height || x >= from.width) return sum;
    const auto more = [&](float total, float v) { return fma_rn(v, weight, total); };
    return {by_channel(sum.pixel, pixel_at(from.at(y, x)), more), add_rn(sum.inside, weight)};
}

DEVICE Pixel nearest(const Pixel& p) {
    return by_channel(p, p, [](float v, float) { return rounded(clamped(v, 255.0f)); });
}

DEVICE Pixel moved(const View& from, const Row& row, int kind, int y, int x) {
    const float dx = from_middle(x, from.width), dy = from_middle(y, from.height);
    const float px = place(row.number, dx, dy, from.width), py = place(row.number + 3, dx, dy, from.height);
    const Pixel fill = {row.fill[0], row.fill[1], row.fill[2]};
    if (kind == NEAREST) {
        const int iy = index(rounded(py)), ix = index(rounded(px));
        const bool inside = iy >= 0 && ix >= 0 && iy < from.height && ix < from.width;
        return inside ? pixel_at(from.at(iy, ix)) : nearest(fill);
    }
    const float left = floored(px), top = floored(py);
    const float w = sub_rn(px, left), e = sub_rn(1.0f, w), n = sub_rn(py, top), s = sub_rn(1.0f, n);
    const int iy = index(top), ix = index(left);
    Sum sum = added({{0.0f, 0.0f, 0.0f}, 0.0f}, from, iy, ix, mul_rn(e, s));
    sum = added(sum, from, iy, ix + 1, mul_rn(w, s));
    sum = added(sum, from, iy + 1, ix, mul_rn(e, n));
    sum = added(sum, from, iy + 1, ix + 1, mul_rn(w, n));
    if (kind == BILINEAR) return nearest(sum.pixel);
    return nearest(by_channel(sum.pixel, fill, [&](float v, float background) {
        return add_rn(mul_rn(sub_rn(v, background), sum.inside), background);
    }));
}

typedef Lane<byte_t, 3> Raw;

// By all threads: what `made` says of each pixel, to `to`.
template <class Made>
DEVICE void write(byte_t* to, unsigned height, unsigned width, Stage<byte_t, 3>* stages, Made made) {
    const unsigned pixels = height * width;
    for (unsigned first = threadIdx.x / 32 * 32; first < pixels; first += blockDim.x) {
        const unsigned pixel = first + threadIdx.x % 32;
        Raw done = {};
        if (pixel < pixels) {
            const Pixel p = made(static_cast<int>(pixel / width), static_cast<int>(pixel % width));
            done.at[0] = cast(p.r);
            done.at[1] = cast(p.g);
            done.at[2] = cast(p.b);
        }
        const unsigned lanes = pixels - first < 32 ? pixels - first : 32;
        store_run(to + 3 * static_cast<offset_t>(first), lanes, done, stages[threadIdx.x / 32]);
    }
    __syncthreads();  // the next stage reads it
}

DEVICE bool is_on(const Row& row) { return kind_of(row.kind, FILLED) || !is_zero(row.flip_x) || !is_zero(row.flip_y); }

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
augment(const byte_t* images, byte_t* out, byte_t* spare, const float* __restrict__ rows,
        const float* __restrict__ weights, int chains, int stages, int height, int width) {
    __shared__ unsigned counts[COPIES * COUNTS];
    __shared__ Channel channels[3];
    __shared__ byte_t table[3 * LEVELS];
    __shared__ Stage<byte_t, 3> side_by_side[MAX_THREADS / 32];
    const unsigned pixels = static_cast<unsigned>(height) * static_cast<unsigned>(width);
    const offset_t size = 3 * static_cast<offset_t>(pixels), begin = size * blockIdx.x, copy = size * gridDim.x;
    const Row* own = reinterpret_cast<const Row*>(rows) + static_cast<offset_t>(blockIdx.x) * chains * stages;

    for (int chain = 0; chain < chains; ++chain) {
        const Row* every = own + chain * stages;
        byte_t* result = weights == nullptr ? out + begin : spare + chain * copy + begin;
        byte_t* other = spare + (weights == nullptr ? 0 : chains * copy) + begin;
        View from = {images + begin, height, width, false, false};
        int left = 0;
        for (int n = 0; n < stages; ++n) left += is_on(every[n]);
        const bool as_it_is = left == 0;  // then it is copied
        left += as_it_is;
        for (int n = 0; n < stages; ++n) {
            const Row& row = every[n];
            if (!is_on(row) && !(as_it_is && n == 0)) continue;
            const int kind = kind_of(row.kind, FILLED);
            byte_t* to = left-- % 2 ? result : other;
            from.flip_x = !is_zero(row.flip_x);
            from.flip_y = !is_zero(row.flip_y);
            if (kind == CONTRAST || kind == AUTOCONTRAST || kind == EQUALIZE) {
                count(from.image, pixels, kind == CONTRAST, counts);
                if (threadIdx.x < 3) channels[threadIdx.x] = summed(counts + LEVELS * threadIdx.x, pixels);
                __syncthreads();
            }
            const float mean = div_rn(static_cast<float>(channels[0].sum), static_cast<float>(pixels));
            for (unsigned i = threadIdx.x; i < 3 * LEVELS; i += blockDim.x)
                table[i] = cast(looked_up(kind, row, i % LEVELS, channels[i / LEVELS], counts[i], mean));
            __syncthreads();
            write(to, height, width, side_by_side, [&](int y, int x) -> Pixel {
                if (kind >= NEAREST) return moved(from, row, kind, y, x);
                if (kind == SHARPNESS) return sharpened(from, y, x, row.number[1]);
                const byte_t* at = from.at(y, x);
                const Pixel p = pixel_at(at);
                if (kind == SATURATION) return blend(p, cut(gray(p)), row.number[0], row.number[1]);
                return {static_cast<float>(table[at[0]]), static_cast<float>(table[LEVELS + at[1]]),
                        static_cast<float>(table[2 * LEVELS + at[2]])};
            });
            from.image = to;
        }
    }
    if (weights == nullptr) return;
    const float* shares = weights + static_cast<offset_t>(blockIdx.x) * (1 + chains);
    const View image = {images + begin, height, width, !is_zero(own->flip_x), !is_zero(own->flip_y)};
    write(out + begin, height, width, side_by_side, [&](int y, int x) -> Pixel {
        const Pixel p = pixel_at(image.at(y, x));
        Pixel sum = by_channel(p, p, [&](float v, float) { return mul_rn(v, shares[0]); });
        const byte_t* at = spare + begin + 3 * (static_cast<offset_t>(y) * width + x);
        for (int chain = 0; chain < chains; ++chain, at += copy) {
            const float share = shares[1 + chain];
            sum = by_channel(sum, pixel_at(at), [&](float total, float v) { return add_rn(total, mul_rn(v, share)); });
        }
        return by_channel(sum, sum, [](float v, float) { return level(v); });
    });
}
