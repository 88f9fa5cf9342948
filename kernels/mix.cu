// mix: MixUp and CutMix of a finished batch: each sample with a partner of the same batch, in one pass.
//
//   in, out        float32 | float16 | bfloat16, `elements` of them per sample, dense, in the same order of memory
//   per sample     partner; weight of the sample itself, 1 - weight of its partner; within box (y, x, height, width)
//                  the weight is 0
//   arithmetic     in float32: a product each, one sum, three roundings; then one to the type, ties to even
//
// finish (finish.cu, MIX) does the same without a pass of its own, and in float32 before the cast. This one is for
// batches that something else made.
//
// Law: mix_reference in mix.py is equal bit for bit; every operation that can round comes from _numbers.cuh.
//
// Chosen by the compiler's options:
//   OUT_FLOAT32 | OUT_FLOAT16 | OUT_BFLOAT16    the type, in and out
//   CHANNELS_LAST   0: planes, so that x is element % width; 1: x is element / channels % width
//   ELEMENTS        how many a thread does: 16 bytes of them, which needs elements % ELEMENTS == 0 and arrays aligned
//                   to 16 bytes; or 1
//
// Bytes moved: 2 * size per element, and one more size where the weight is not 1: a partner is read where it shows.

#include "_numbers.cuh"

struct alignas(sizeof(out_t) * ELEMENTS) Pack {
    out_t at[ELEMENTS];
};

// Block x runs over the groups of ELEMENTS of one sample, block y over samples. The launcher holds `elements` below
// 2^31, so positions inside a sample fit 32 bits.
extern "C" __global__ void __launch_bounds__(256)
mix(const out_t* __restrict__ images, out_t* __restrict__ out,
    const int* __restrict__ partner, const float* __restrict__ weight, const int* __restrict__ box,
    int samples, int elements, int height, int width, int channels) {
    const unsigned group = blockIdx.x * blockDim.x + threadIdx.x;
    if (group >= static_cast<unsigned>(elements) / ELEMENTS) return;
    const unsigned first = group * ELEMENTS;

    for (unsigned sample = blockIdx.y; sample < static_cast<unsigned>(samples); sample += gridDim.y) {
        const float own = weight == nullptr ? 1.0f : weight[sample];
        const int* place = box == nullptr ? nullptr : box + 4 * static_cast<offset_t>(sample);
        const bool boxed = place != nullptr && place[2] > 0 && place[3] > 0;
        float share[ELEMENTS];
        bool alone = true;
#pragma unroll
        for (int k = 0; k < ELEMENTS; ++k) {
            share[k] = own;
            if (boxed) {
#if CHANNELS_LAST
                const unsigned pixel = (first + k) / static_cast<unsigned>(channels);
                const unsigned y = pixel / static_cast<unsigned>(width), x = pixel - y * width;
#else
                const unsigned row = (first + k) / static_cast<unsigned>(width);
                const unsigned y = row % static_cast<unsigned>(height), x = first + k - row * width;
#endif
                share[k] = is_inside(place, y, x) ? 0.0f : own;
            }
            alone = alone && is_one(share[k]);
        }

        const offset_t here = sample * static_cast<offset_t>(elements) + first;
        Pack mine = *reinterpret_cast<const Pack*>(images + here);
        if (!alone) {  // a sample that is left alone costs no second read
            const unsigned named = static_cast<unsigned>(partner[sample]);
            const unsigned from = named < static_cast<unsigned>(samples) ? named : sample;
            const Pack other = *reinterpret_cast<const Pack*>(images + from * static_cast<offset_t>(elements) + first);
#pragma unroll
            for (int k = 0; k < ELEMENTS; ++k) {
                mine.at[k] = cast(mixed(load(mine.at[k]), load(other.at[k]), share[k]));
            }
        }
        *reinterpret_cast<Pack*>(out + here) = mine;
    }
}
