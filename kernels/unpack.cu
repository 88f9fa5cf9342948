// unpack: records that hold plain pixels, to images, in one launch and one pass over memory.
//
//   in    records   bytes: record n starts at records + n * pitch and holds pixels * channels elements of `bits` bits
//   out   out       float32 | float16 | bfloat16 | uint8, (samples, channels, pixels) or (samples, pixels, channels)
//   per channel     v * scale + bias, the product rounded and then the sum; then to the output type, ties to even
//
// A record is one stream of bits without gaps. Its element i is the bits i * bits up to (i + 1) * bits of that stream,
// and bit k of the stream lies in byte k / 8. Least significant first, bit k is the bit of value 2^(k % 8) there and
// an element's first bit counts 1; most significant first, both are the other way round. So 16 bits of the former are
// little endian and of the latter big endian, and 8 bits are the same in both.
//
// Law: every float operation that can round comes from _numbers.cuh; an element is below 2^16, so it becomes a float
// exactly. The result is a function of the arguments alone, and unpack_reference in tests/kit/unpacked.py gives it bit
// for bit.
//
// Chosen by the compiler's options: OUT_FLOAT32 | OUT_FLOAT16 | OUT_BFLOAT16 | OUT_UINT8, the output type.
// Bytes moved: channels * (bits / 8 + size of an output element) per pixel.

#include "_numbers.cuh"

#define MOST_CHANNELS 4

// 8, 10, 12 or 16 bits: never more than two bytes, as an element starts at an even bit.
DEVICE unsigned element_at(const byte_t* record, offset_t index, unsigned bits, bool msb_first) {
    const offset_t bit = index * bits;
    const unsigned begin = static_cast<unsigned>(bit) & 7u, end = begin + bits;
    const unsigned first = record[bit >> 3], second = end > 8 ? record[(bit >> 3) + 1] : 0;
    const unsigned shifted = msb_first ? (first << 8 | second) >> (16 - end) : (second << 8 | first) >> begin;
    return shifted & ((1u << bits) - 1);
}

// Block x runs over the pixels of one record, block y over records; a thread's y is a record too, so that small images
// fill whole blocks. The launcher holds a record's pitch and its bytes below 2^31, so positions of pixels fit 32 bits;
// bits inside a record and everything across records are 64 bits wide.
extern "C" __global__ void __launch_bounds__(256)
unpack(const byte_t* __restrict__ records, out_t* __restrict__ out, int samples, int pixels, int pitch,
       int channels, int bits, int msb_first, int planar, int channels_last,
       float scale_0, float scale_1, float scale_2, float scale_3,
       float bias_0, float bias_1, float bias_2, float bias_3) {
    const offset_t plane = static_cast<unsigned>(pixels), pixel = blockIdx.x * blockDim.x + threadIdx.x;
    if (pixel >= plane) return;
    const float scale[] = {scale_0, scale_1, scale_2, scale_3}, bias[] = {bias_0, bias_1, bias_2, bias_3};

    for (unsigned sample = blockIdx.y * blockDim.y + threadIdx.y; sample < static_cast<unsigned>(samples);
         sample += gridDim.y * blockDim.y) {
        const byte_t* record = records + static_cast<offset_t>(sample) * static_cast<unsigned>(pitch);
        out_t* image = out + static_cast<offset_t>(sample) * channels * plane;
#pragma unroll
        for (int c = 0; c < MOST_CHANNELS; ++c) {  // an index that is no constant would want scale in memory
            if (c == channels) break;
            const offset_t by_plane = c * plane + pixel, by_pixel = pixel * channels + c;
            const unsigned element = element_at(record, planar ? by_plane : by_pixel, bits, msb_first);
            image[channels_last ? by_pixel : by_plane] = cast(add_rn(mul_rn(static_cast<float>(element), scale[c]), bias[c]));
        }
    }
}
