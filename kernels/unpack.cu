// unpack: records that hold plain pixels, to images, in one launch and one pass over memory.
//
//   in    records   bytes: record n starts at records + n * pitch and holds pixels * CHANNELS elements of BITS bits
//   out   out       float32 | float16 | bfloat16 | uint8, (samples, CHANNELS, pixels) or (samples, pixels, CHANNELS)
//   per channel     v * scale + bias, one rounding (fma); then one rounding to the output type, ties to even
//
// A record is one stream of bits without gaps. Its element i is the bits i * BITS up to (i + 1) * BITS of that stream,
// and bit k of the stream lies in byte k / 8. Least significant first, bit k is the bit of value 2^(k % 8) there and
// an element's first bit counts 1; most significant first, both are the other way round. So 16 bits of the former are
// little endian and of the latter big endian, and 8 bits are the same in both.
//
// Law: every float operation that can round comes from _numbers.cuh; an element is below 2^16, so it becomes a float
// exactly. The result is a function of the arguments alone, and unpack_reference in unpack.py gives it bit for bit.
//
// Chosen by the compiler's options:
//   OUT_FLOAT32 | OUT_FLOAT16 | OUT_BFLOAT16 | OUT_UINT8     the output type (uint8: of 8 bits, and no scale, no bias)
//   BITS            8, 10, 12 or 16
//   MSB_FIRST       0: least significant bit first, 1: most significant (<endian.h> owns the name BIG_ENDIAN)
//   CHANNELS        1..4
//   PLANAR_IN       elements lie 0: pixel by pixel, 1: plane by plane
//   CHANNELS_LAST   out 0: one plane per channel, 1: channels last
// Bytes moved: CHANNELS * (BITS / 8 + size of an output element) per pixel.

#include "_numbers.cuh"

#if defined(OUT_UINT8) && BITS != 8
#error "unpack: uint8 is for elements of 8 bits"
#endif

DEVICE out_t finished(unsigned element, float scale, float bias) {
#ifdef OUT_UINT8
    return static_cast<out_t>(element);
#else
    return cast(fma_rn(static_cast<float>(element), scale, bias));
#endif
}

DEVICE unsigned element_at(const byte_t* record, offset_t index) {
#if BITS == 8
    return record[index];
#else  // never more than two bytes, and never fewer: BITS is even, so an element starts at an even bit
    const offset_t bit = index * BITS;
    const unsigned skip = static_cast<unsigned>(bit) & 7u;
    const unsigned first = record[bit >> 3], second = record[(bit >> 3) + 1];
#if MSB_FIRST
    const unsigned shifted = (first << 8 | second) >> (16 - BITS - skip);
#else
    const unsigned shifted = (second << 8 | first) >> skip;
#endif
    return shifted & ((1u << BITS) - 1);
#endif
}

// Block x runs over the pixels of one record, block y over records; a thread's y is a record too, so that small images
// fill whole blocks. The launcher holds a record's pitch and its bytes below 2^31, so positions of pixels fit 32 bits;
// bits inside a record and everything across records are 64 bits wide.
extern "C" __global__ void __launch_bounds__(256)
unpack(const byte_t* __restrict__ records, out_t* __restrict__ out, int samples, int pixels, int pitch,
       float scale_0, float scale_1, float scale_2, float scale_3,
       float bias_0, float bias_1, float bias_2, float bias_3) {
    const offset_t plane = static_cast<unsigned>(pixels), pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= plane) return;
    const float scale[4] = {scale_0, scale_1, scale_2, scale_3}, bias[4] = {bias_0, bias_1, bias_2, bias_3};

    for (unsigned sample = blockIdx.y * blockDim.y + threadIdx.y; sample < static_cast<unsigned>(samples);
         sample += gridDim.y * blockDim.y) {
        const byte_t* record = records + static_cast<offset_t>(sample) * static_cast<unsigned>(pitch);
        out_t* image = out + static_cast<offset_t>(sample) * CHANNELS * plane;
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            const unsigned element = element_at(record, PLANAR_IN ? c * plane + pixel : pixel * CHANNELS + c);
            image[CHANNELS_LAST ? pixel * CHANNELS + c : c * plane + pixel] = finished(element, scale[c], bias[c]);
        }
    }
}
