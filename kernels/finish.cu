// finish: the last step of the GPU path, in one launch and one pass over memory.
//
//   in    images   uint8    (samples, height, width, 3), dense
//   out   out      float32 | float16 | bfloat16 | uint8, (samples, 3, height, width) or (samples, height, width, 3)
//   per sample     flip_x, flip_y: 0 or not 0
//   per channel    v * scale + bias, one rounding (fma)
//   per sample     erase: a rectangle (y, x, height, width) of out that gets the erase values instead
//   MIX            weight of the sample itself, 1 - weight of its partner, which is finished likewise; within box
//                  (y, x, height, width) the weight is 0. A product each, one sum, three roundings
//   out            one rounding to the output type, ties to even
//
// Law: every float operation that can round comes from _numbers.cuh. So the result is a function of the arguments alone,
// and by_torch in dali_feed/engines/finish.py gives it bit for bit.
//
// Chosen by the compiler's options:
//   OUT_FLOAT32 | OUT_FLOAT16 | OUT_BFLOAT16 | OUT_UINT8     the output type (uint8 takes no scale and no bias)
//   MIX             1: with a partner. Off, its arguments are there and unused
//   CHANNELS_LAST   0: one plane per channel, 1: channels last
//   PIXELS          how many neighbouring pixels of a row a thread does. 4 needs width % 4 == 0, images aligned to 4
//                   bytes and out to 4 of its elements, 2 the same of 2; 1 has no such needs. None has a tail to care
//                   for. A thread loads 3 words of PIXELS bytes, and into each plane it stores a vector of PIXELS.
//   VECTOR          of channels last, where PIXELS is not 1, the bytes of a store: 16, which needs samples of a multiple
//                   of 16 bytes and out aligned to it, or PIXELS elements. A thread's own elements are 3 times as long,
//                   so a warp exchanges them in shared memory: its threads store vectors side by side. 0
//                   elsewhere.
//
// Bytes moved: 3 * (1 + size of an output element) per pixel: 15 for float32, 9 for the 16-bit types, 6 for uint8.
// With MIX 3 more where the weight is not 1: a partner's bytes are read wherever its pixels show.

#include "_numbers.cuh"
#if VECTOR
#include "_stage.cuh"
#endif

#define THREADS 256

template <class T>
struct alignas(sizeof(T) * PIXELS) Pack {
    T at[PIXELS];
};

// Flags come as one byte or four per sample (element_size), or not at all (element_size 0).
DEVICE bool is_set(const byte_t* flags, int element_size, unsigned sample) {
    if (element_size == 0) return false;
    if (element_size == 1) return flags[sample] != 0;
    return reinterpret_cast<const int*>(flags)[sample] != 0;
}

// The sample's rectangle, where there are rectangles.
DEVICE const int* box_of(const int* boxes, unsigned sample) {
    return boxes == nullptr ? nullptr : boxes + 4 * static_cast<offset_t>(sample);
}

struct Job {
    const byte_t* images;
    const byte_t* flip_x;
    const byte_t* flip_y;
    const int* erase;
    int flip_x_size, flip_y_size, height, width;
    float scale[3], bias[3], erased[3];
};

// Pixels y, x .. x+PIXELS-1 of a finished sample, as float32.
DEVICE void finished(const Job& job, unsigned sample, unsigned y, unsigned x, float value[PIXELS][3]) {
    const bool mirror = is_set(job.flip_x, job.flip_x_size, sample);
    const unsigned from_y = is_set(job.flip_y, job.flip_y_size, sample) ? job.height - 1 - y : y;
    const unsigned from_x = mirror ? job.width - PIXELS - x : x;
    const offset_t plane = static_cast<offset_t>(job.height) * static_cast<offset_t>(job.width);
    const offset_t from = sample * plane + static_cast<offset_t>(from_y) * job.width + from_x;
    const Pack<byte_t>* words = reinterpret_cast<const Pack<byte_t>*>(job.images + 3 * from);
    const Pack<byte_t> raw[3] = {words[0], words[1], words[2]};

    // Every index below is a constant once unrolled: a runtime index would push the arrays out of the registers.
#pragma unroll
    for (int p = 0; p < PIXELS; ++p) {
#pragma unroll
        for (int c = 0; c < 3; ++c) {
            const int ahead = 3 * p + c, back = 3 * (PIXELS - 1 - p) + c;
            const byte_t as_is = raw[ahead / PIXELS].at[ahead % PIXELS];
            const byte_t mirrored = raw[back / PIXELS].at[back % PIXELS];
            value[p][c] = static_cast<float>(mirror ? mirrored : as_is);
        }
    }

    const int* rectangle = box_of(job.erase, sample);
#pragma unroll
    for (int p = 0; p < PIXELS; ++p) {
        const bool erased = rectangle != nullptr && is_inside(rectangle, y, x + p);
#pragma unroll
        for (int c = 0; c < 3; ++c) {
#ifndef OUT_UINT8
            value[p][c] = fma_rn(value[p][c], job.scale[c], job.bias[c]);
#endif
            if (erased) value[p][c] = job.erased[c];
        }
    }
}

// Block x runs over the groups of PIXELS pixels of one sample, block y over samples. The launcher holds
// height * width below 2^31, so positions inside a plane fit 32 bits; everything across planes is 64 bits wide.
extern "C" __global__ void __launch_bounds__(THREADS)
finish(const byte_t* __restrict__ images, out_t* __restrict__ out,
       const byte_t* __restrict__ flip_x, int flip_x_size,
       const byte_t* __restrict__ flip_y, int flip_y_size,
       const int* __restrict__ erase,
       const int* __restrict__ partner, const float* __restrict__ weight, const int* __restrict__ box,
       int samples, int height, int width,
       float scale_0, float scale_1, float scale_2,
       float bias_0, float bias_1, float bias_2,
       float erased_0, float erased_1, float erased_2) {
    const unsigned groups_in_row = static_cast<unsigned>(width) / PIXELS;
    const unsigned groups = groups_in_row * static_cast<unsigned>(height);
#if VECTOR
    __shared__ Stage<out_t, 3 * PIXELS> stages[THREADS / 32];
    const unsigned position = blockIdx.x * blockDim.x + threadIdx.x, first = position - threadIdx.x % 32;
    if (first >= groups) return;  // a whole warp; of another one all threads store, so some do the last group once more
    const unsigned group = position < groups ? position : groups - 1, lanes = groups - first < 32 ? groups - first : 32;
#else
    const unsigned group = blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= groups) return;
#endif
    const unsigned y = group / groups_in_row;
    const unsigned x = (group - y * groups_in_row) * PIXELS;
    const offset_t plane = static_cast<offset_t>(height) * static_cast<offset_t>(width);
    const Job job = {images, flip_x, flip_y, erase, flip_x_size, flip_y_size, height, width,
                     {scale_0, scale_1, scale_2}, {bias_0, bias_1, bias_2}, {erased_0, erased_1, erased_2}};

    for (unsigned sample = blockIdx.y; sample < static_cast<unsigned>(samples); sample += gridDim.y) {
        float value[PIXELS][3];
        finished(job, sample, y, x, value);

#if MIX
        const float own = weight == nullptr ? 1.0f : weight[sample];
        const int* place = box_of(box, sample);
        float share[PIXELS];
        bool alone = true;
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) {
            share[p] = place != nullptr && is_inside(place, y, x + p) ? 0.0f : own;
            alone = alone && is_one(share[p]);
        }
        if (!alone) {  // a sample that is left alone costs no second read
            float other[PIXELS][3];
            const unsigned named = static_cast<unsigned>(partner[sample]);
            finished(job, named < static_cast<unsigned>(samples) ? named : sample, y, x, other);
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) {
#pragma unroll
                for (int c = 0; c < 3; ++c) value[p][c] = mixed(value[p][c], other[p][c], share[p]);
            }
        }
#endif

#if VECTOR
        Lane<out_t, 3 * PIXELS> done;
#pragma unroll
        for (int i = 0; i < 3 * PIXELS; ++i) done.at[i] = cast(value[i / 3][i % 3]);
        store_run(out + 3 * (sample * plane + static_cast<offset_t>(first) * PIXELS), lanes, done,
                  stages[threadIdx.x / 32]);
#else
        Pack<out_t> done[3];  // planes: done[c] is a run of channel c; channels last, of one pixel: its channels
#pragma unroll
        for (int p = 0; p < PIXELS; ++p) {
#pragma unroll
            for (int c = 0; c < 3; ++c) {
                const out_t result = cast(value[p][c]);
                done[c].at[p] = result;
            }
        }

        const offset_t here = static_cast<offset_t>(y) * width + x;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
#if CHANNELS_LAST
            reinterpret_cast<Pack<out_t>*>(out + 3 * (sample * plane + here))[i] = done[i];
#else
            *reinterpret_cast<Pack<out_t>*>(out + (3 * static_cast<offset_t>(sample) + i) * plane + here) = done[i];
#endif
        }
#endif
    }
}
