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

typedef out_t element_t;

struct alignas(sizeof(element_t) * ELEMENTS) Pack {
    element_t at[ELEMENTS];
};

// Block x runs over the groups of ELEMENTS of one sample, block y over samples. The launcher holds `elements` below
// 2^31, so positions inside a sample fit 32 bits.
extern "C" __global__ void __launch_bounds__(256)
mix(const element_t* __restrict__ images, element_t* __restrict__ out,
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
                // In 32 unsigned bits what lies before the box is far behind it.
                const bool inside = y - static_cast<unsigned>(place[0]) < static_cast<unsigned>(place[2]) &&
                                    x - static_cast<unsigned>(place[1]) < static_cast<unsigned>(place[3]);
                share[k] = inside ? 0.0f : own;
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
                const float mixed = add_rn(mul_rn(load(mine.at[k]), share[k]), mul_rn(load(other.at[k]), sub_rn(1.0f, share[k])));
                mine.at[k] = is_one(share[k]) ? mine.at[k] : is_zero(share[k]) ? other.at[k] : cast(mixed);
            }
        }
        *reinterpret_cast<Pack*>(out + here) = mine;
    }
}
