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
// Law: mix_reference in mix.py is equal bit for bit; every operation that can round is PTX without .ftz.
//
// Chosen by the compiler's options:
//   TYPE_FLOAT32 | TYPE_FLOAT16 | TYPE_BFLOAT16
//   CHANNELS_LAST   0: planes, so that x is element % width; 1: x is element / channels % width
//   ELEMENTS        how many a thread does: 16 bytes of them, which needs elements % ELEMENTS == 0 and arrays aligned
//                   to 16 bytes; or 1
//
// Bytes moved: 2 * size per element, and one more size where the weight is not 1: a partner is read where it shows.

#define DEVICE static __device__ __forceinline__

typedef unsigned char byte_t;
typedef unsigned long long offset_t;  // a batch may hold more than 2^32 elements

#if defined(TYPE_FLOAT32)
typedef float element_t;
DEVICE float load(element_t v) { return v; }
DEVICE element_t cast(float v) { return v; }
#elif defined(TYPE_FLOAT16)
typedef unsigned short element_t;
DEVICE float load(element_t v) {
#ifdef __CUDA_ARCH__
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(v));
    return result;
#else
    return half_bits_to_float(v);
#endif
}
DEVICE element_t cast(float v) {
#ifdef __CUDA_ARCH__
    element_t result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(v));
    return result;
#else
    return float_to_half_bits(v);
#endif
}
#elif defined(TYPE_BFLOAT16)
typedef unsigned short element_t;
DEVICE float load(element_t v) { return __uint_as_float(static_cast<unsigned>(v) << 16); }
DEVICE element_t cast(float v) {
    const unsigned bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // NaN
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    element_t result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(v));
    return result;
#else  // sm_75 lacks the instruction
    return static_cast<element_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
#else
#error "mix: define one of TYPE_FLOAT32, TYPE_FLOAT16, TYPE_BFLOAT16"
#endif

DEVICE float mul_rn(float a, float b) {
#ifdef __CUDA_ARCH__
    float result;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return a * b;
#endif
}

DEVICE float add_rn(float a, float b) {
#ifdef __CUDA_ARCH__
    float result;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
    return result;
#else
    return a + b;
#endif
}

DEVICE float rest_of(float share) {  // 1 - share
#ifdef __CUDA_ARCH__
    float result;
    asm("sub.rn.f32 %0, 0f3F800000, %1;" : "=f"(result) : "f"(share));
    return result;
#else
    return 1.0f - share;
#endif
}

// Of a weight, by its bits: a comparison of floats would take a subnormal for 0.
DEVICE bool is_one(float v) { return __float_as_uint(v) == 0x3f800000u; }
DEVICE bool is_zero(float v) { return __float_as_uint(v) << 1 == 0; }

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
                const float mixed = add_rn(mul_rn(load(mine.at[k]), share[k]), mul_rn(load(other.at[k]), rest_of(share[k])));
                mine.at[k] = is_one(share[k]) ? mine.at[k] : is_zero(share[k]) ? other.at[k] : cast(mixed);
            }
        }
        *reinterpret_cast<Pack*>(out + here) = mine;
    }
}
