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
//   PIXELS          how many neighbouring pixels a thread does, of all channels: they share vectors on one side or the
//                   other. 8 fill whole bytes of any BITS: it needs pixels % 8 == 0 and records, pitch and out on the
//                   borders of their vectors (vector_of here, _vector in unpack.py). 1 reads byte by byte and has no
//                   such needs. Neither has a tail to care for.
//
// Bytes moved: CHANNELS * (BITS / 8 + size of an output element) per pixel.

#include "_numbers.cuh"

#if defined(OUT_UINT8) && BITS != 8
#error "unpack: uint8 is for elements of 8 bits"
#endif

DEVICE unsigned bits_of(float v) { return __float_as_uint(v); }
DEVICE unsigned bits_of(unsigned short v) { return v; }
DEVICE unsigned bits_of(byte_t v) { return v; }

DEVICE out_t finished(unsigned element, float scale, float bias) {
#ifdef OUT_UINT8
    return static_cast<out_t>(element);
#else
    return cast(fma_rn(static_cast<float>(element), scale, bias));
#endif
}

#if PIXELS == 1

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

#else

// A run is what one thread reads or writes in one stretch. Its vectors are as large as runs of `size` bytes, one after
// another, can be cut into, 16 bytes at most. They are made of words: 4 bytes, or 2 where a vector has no more.
DEVICE constexpr int vector_of(int size) { return (size & -size) < 16 ? (size & -size) : 16; }

template <int SIZE>
struct Word {
    typedef unsigned type;
};
template <>
struct Word<2> {
    typedef unsigned short type;
};
template <int VECTOR, int WORD>
struct alignas(VECTOR) Vector {
    typename Word<WORD>::type at[VECTOR / WORD];
};

DEVICE unsigned bytes_reversed(unsigned word, int size) {
    const unsigned whole = word >> 24 | (word >> 8 & 0xff00u) | (word << 8 & 0xff0000u) | word << 24;
    return whole >> (32 - 8 * size);
}

// Every index and every shift below is a constant once unrolled: a runtime index would push the arrays out of the
// registers.
template <int COUNT>
DEVICE void read_run(const byte_t* from, unsigned (&element)[COUNT]) {
    constexpr int SIZE = COUNT * BITS / 8, VECTOR = vector_of(SIZE), WORD = VECTOR < 4 ? VECTOR : 4, WIDTH = 8 * WORD;
    const Vector<VECTOR, WORD>* vectors = reinterpret_cast<const Vector<VECTOR, WORD>*>(from);
    unsigned word[SIZE / WORD];
#pragma unroll
    for (int i = 0; i < SIZE / VECTOR; ++i) {
        const Vector<VECTOR, WORD> vector = vectors[i];
#pragma unroll
        for (int j = 0; j < VECTOR / WORD; ++j) {
            word[i * (VECTOR / WORD) + j] = MSB_FIRST ? bytes_reversed(vector.at[j], WORD) : vector.at[j];
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int at = i * BITS / WIDTH, skip = i * BITS % WIDTH, left = WIDTH - BITS - skip;
        unsigned shifted;
        if (left < 0) {  // the rest is in the next word
            shifted = MSB_FIRST ? word[at] << -left | word[at + 1] >> (WIDTH + left)
                                : word[at] >> skip | word[at + 1] << (WIDTH - skip);
        } else {
            shifted = word[at] >> (MSB_FIRST ? left : skip);
        }
        element[i] = shifted & ((1u << BITS) - 1);
    }
}

template <int COUNT>
DEVICE void write_run(out_t* to, const out_t (&value)[COUNT]) {
    constexpr int EACH = sizeof(out_t), SIZE = COUNT * EACH, VECTOR = vector_of(SIZE);
    Vector<VECTOR, 4>* vectors = reinterpret_cast<Vector<VECTOR, 4>*>(to);
#pragma unroll
    for (int i = 0; i < SIZE / VECTOR; ++i) {
        Vector<VECTOR, 4> vector;
#pragma unroll
        for (int j = 0; j < VECTOR / 4; ++j) {
            unsigned word = 0;
#pragma unroll
            for (int k = 0; k < 4 / EACH; ++k) {
                word |= bits_of(value[(i * VECTOR + 4 * j) / EACH + k]) << (8 * EACH * k);
            }
            vector.at[j] = word;
        }
        vectors[i] = vector;
    }
}

#endif

// Block x runs over the groups of PIXELS pixels of one record, block y over records; a thread's y is a record too, so
// that small images fill whole blocks. The launcher holds a record's pitch and its bytes below 2^31, so positions of
// pixels fit 32 bits; bits inside a record and everything across records are 64 bits wide.
extern "C" __global__ void __launch_bounds__(256)
unpack(const byte_t* __restrict__ records, out_t* __restrict__ out, int samples, int pixels, int pitch,
       float scale_0, float scale_1, float scale_2, float scale_3,
       float bias_0, float bias_1, float bias_2, float bias_3) {
    const unsigned plane = static_cast<unsigned>(pixels);
    const unsigned group = blockIdx.x * blockDim.x + threadIdx.x, first = group * PIXELS;
    if (group >= plane / PIXELS) return;
    const float scale[4] = {scale_0, scale_1, scale_2, scale_3}, bias[4] = {bias_0, bias_1, bias_2, bias_3};

    for (unsigned sample = blockIdx.y * blockDim.y + threadIdx.y; sample < static_cast<unsigned>(samples);
         sample += gridDim.y * blockDim.y) {
        const byte_t* record = records + static_cast<offset_t>(sample) * static_cast<unsigned>(pitch);
        out_t* image = out + static_cast<offset_t>(sample) * CHANNELS * plane;

        unsigned element[CHANNELS][PIXELS];
#if PIXELS == 1
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            const offset_t index = PLANAR_IN ? c * static_cast<offset_t>(plane) + first
                                             : static_cast<offset_t>(first) * CHANNELS + c;
            element[c][0] = element_at(record, index);
        }
#elif PLANAR_IN
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            read_run<PIXELS>(record + (c * (plane / PIXELS) + group) * (PIXELS * BITS / 8), element[c]);
        }
#else
        unsigned run[PIXELS * CHANNELS];
        read_run<PIXELS * CHANNELS>(record + group * (PIXELS * BITS / 8 * CHANNELS), run);
#pragma unroll
        for (int i = 0; i < PIXELS * CHANNELS; ++i) element[i % CHANNELS][i / CHANNELS] = run[i];
#endif

#if CHANNELS_LAST
        out_t done[PIXELS * CHANNELS];
#pragma unroll
        for (int i = 0; i < PIXELS * CHANNELS; ++i) {
            done[i] = finished(element[i % CHANNELS][i / CHANNELS], scale[i % CHANNELS], bias[i % CHANNELS]);
        }
#if PIXELS == 1
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) image[static_cast<offset_t>(first) * CHANNELS + c] = done[c];
#else
        write_run<PIXELS * CHANNELS>(image + static_cast<offset_t>(first) * CHANNELS, done);
#endif
#else
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c) {
            out_t done[PIXELS];
#pragma unroll
            for (int p = 0; p < PIXELS; ++p) done[p] = finished(element[c][p], scale[c], bias[c]);
#if PIXELS == 1
            image[c * static_cast<offset_t>(plane) + first] = done[0];
#else
            write_run<PIXELS>(image + c * static_cast<offset_t>(plane) + first, done);
#endif
        }
#endif
    }
}
