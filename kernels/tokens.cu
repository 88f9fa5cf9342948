// tokens: records of T + 1 tokens into what a language model trains on.
//
//   in    records    uint16 | uint32   (rows, length + 1), a row every `pitch` tokens; rows may overlap
//   out, each a pointer or null, (rows, length), dense
//         inputs     int64   tokens 0 .. length - 1 of the row
//         targets    int64   tokens 1 .. length; ignore_index where the input is the separator
//         positions  int64   0 at the row's start and after every separator, else one more than before
//         documents  int32   how many separators stand before the token in its row
//
// Integers only: the result is a function of the arguments, and tokens_reference in tokens.py gives it.
//
// Positions and documents need to know of every separator before them in the row, and threads share nothing. So there
// are two launches of one grid. The first marks separators, one bit per token: 32 tokens are a word of the scratch
// memory, rows are padded to whole tiles with zeros. The second looks back over its row's marks, 128 tokens at a load,
// and most loads find nothing: a mark is rare. Without a separator, or without these two outputs, it runs alone.
//
// A warp does a tile, 256 tokens of a row, in both launches. In the second its lanes stand side by side at every store
// (RUN tokens each, then the whole warp steps on), so that a store of a warp is one run of memory without holes; eight
// neighbouring tokens per thread would leave holes of 48 bytes between the 16 that each thread stores.
//
// Chosen by the compiler's options:
//   TOKEN_UINT16 | TOKEN_UINT32    the type of a token in the records
//   PHASE_MARK | PHASE_WRITE       the launch
//   RUN (PHASE_WRITE)  neighbouring tokens of a thread. 2 needs an even length, int64 outputs aligned to 16 bytes and
//                      documents to 8: then a thread stores 16 bytes at once. 1 has no such needs. Records are read by
//                      element in both: rows of T + 1 tokens start at odd places, and the second read of a token, as
//                      input and as target, comes from the cache.
//
// Bytes moved per token, of size s: s + 8 + 8 for inputs and targets; all four after a separator: 2 s + 28 + 1/4.

#define DEVICE static __device__ __forceinline__

typedef unsigned char byte_t;
typedef unsigned long long offset_t;  // a batch may hold more than 2^32 tokens, and a pair of mark words has 64 bits
typedef long long long_t;

#if defined(TOKEN_UINT16)
typedef unsigned short token_t;
#elif defined(TOKEN_UINT32)
typedef unsigned token_t;
#else
#error "tokens: define one of TOKEN_UINT16, TOKEN_UINT32"
#endif

constexpr unsigned TILE = 256;         // tokens
constexpr unsigned WORDS = TILE / 32;  // of marks in a tile

struct Place {
    unsigned row, tile, tile_in_row;
    offset_t from;  // the row's first token
};

// Block x runs over all tiles of all rows, threadIdx.y over those of a block. The launcher holds their number, the
// length and the pitch below 2^31.
DEVICE Place place(int length, int pitch) {
    const unsigned tiles_in_row = (static_cast<unsigned>(length) + TILE - 1) / TILE;
    const unsigned tile = blockIdx.x * blockDim.y + threadIdx.y;
    const unsigned row = tile / tiles_in_row;
    return {row, tile, tile - row * tiles_in_row, static_cast<offset_t>(row) * static_cast<unsigned>(pitch)};
}

#if defined(PHASE_MARK)

extern "C" __global__ void __launch_bounds__(256)
tokens(const token_t* __restrict__ records, byte_t* __restrict__ marks, int rows, int length, int pitch,
       int separator) {
    const Place here = place(length, pitch);
    if (here.row >= static_cast<unsigned>(rows)) return;
    const unsigned first = here.tile_in_row * TILE + threadIdx.x * 8;
    unsigned found = 0;
#pragma unroll
    for (unsigned i = 0; i < 8; ++i) {
        const bool inside = first + i < static_cast<unsigned>(length);  // the last token is no input
        if (inside && records[here.from + first + i] == static_cast<unsigned>(separator)) found |= 1u << i;
    }
    marks[static_cast<offset_t>(here.tile) * (TILE / 8) + threadIdx.x] = static_cast<byte_t>(found);
}

#elif defined(PHASE_WRITE)

template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT) Pack {
    T at[COUNT];
};

DEVICE unsigned count_of(offset_t bits) {
#ifdef __CUDA_ARCH__
    return __popcll(bits);
#else
    return __builtin_popcountll(bits);
#endif
}

// The place behind the highest bit that is set; some bit is.
DEVICE unsigned behind_last(offset_t bits) {
#ifdef __CUDA_ARCH__
    return 64 - __clzll(bits);
#else
    return 64 - __builtin_clzll(bits);
#endif
}

// Of the document that the next token belongs to.
struct Document {
    unsigned number, start;
};

// What `before` becomes behind tokens `at` and on, whose marks are `bits`.
DEVICE Document behind(Document before, offset_t bits, unsigned at) {
    if (bits == 0) return before;
    return {before.number + count_of(bits), at + behind_last(bits)};
}

extern "C" __global__ void __launch_bounds__(256)
tokens(const token_t* __restrict__ records, const unsigned* __restrict__ marks,
       long_t* __restrict__ inputs, long_t* __restrict__ targets,
       long_t* __restrict__ positions, int* __restrict__ documents,
       int rows, int length, int pitch, int separator, int has_separator, int ignore_index) {
    const Place here = place(length, pitch);
    if (here.row >= static_cast<unsigned>(rows)) return;

    Document document = {0, 0};
    unsigned word[WORDS] = {};
    if (marks != nullptr) {
        const unsigned first_tile = here.tile - here.tile_in_row;
        const Pack<unsigned, 4>* quads =
            reinterpret_cast<const Pack<unsigned, 4>*>(marks + static_cast<offset_t>(first_tile) * WORDS);
        const unsigned before = here.tile_in_row * (WORDS / 4);
#pragma unroll 4
        for (unsigned i = 0; i < before; ++i) {
            const Pack<unsigned, 4> quad = quads[i];
            const offset_t low = quad.at[0] | static_cast<offset_t>(quad.at[1]) << 32;
            const offset_t high = quad.at[2] | static_cast<offset_t>(quad.at[3]) << 32;
            if ((low | high) == 0) continue;
            document = behind(behind(document, low, 128 * i), high, 128 * i + 64);
        }
        const Pack<unsigned, 4> own[2] = {quads[before], quads[before + 1]};
#pragma unroll
        for (unsigned i = 0; i < WORDS; ++i) word[i] = own[i / 4].at[i % 4];
    }

    const offset_t to_row = static_cast<offset_t>(here.row) * static_cast<unsigned>(length);
    const unsigned own_bit = RUN * threadIdx.x;
    // Every index of an array below is a constant once unrolled, or the arrays would leave the registers.
#pragma unroll
    for (unsigned step = 0; step < WORDS / RUN; ++step) {
        offset_t bits = word[RUN * step];
#if RUN == 2
        bits |= static_cast<offset_t>(word[RUN * step + 1]) << 32;
#endif
        const unsigned step_at = here.tile_in_row * TILE + step * 32 * RUN;
        const unsigned at = step_at + own_bit;
        if (at < static_cast<unsigned>(length)) {
            const offset_t to = to_row + at;
            if (inputs != nullptr || targets != nullptr) {
                unsigned token[RUN + 1];
                Pack<long_t, RUN> input, target;
#pragma unroll
                for (int p = 0; p <= RUN; ++p) token[p] = records[here.from + at + p];
#pragma unroll
                for (int p = 0; p < RUN; ++p) {
                    const bool ends = has_separator != 0 && token[p] == static_cast<unsigned>(separator);
                    input.at[p] = token[p];
                    target.at[p] = ends ? static_cast<long_t>(ignore_index) : static_cast<long_t>(token[p + 1]);
                }
                if (inputs != nullptr) *reinterpret_cast<Pack<long_t, RUN>*>(inputs + to) = input;
                if (targets != nullptr) *reinterpret_cast<Pack<long_t, RUN>*>(targets + to) = target;
            }
            if (positions != nullptr || documents != nullptr) {
                Pack<long_t, RUN> position;
                Pack<int, RUN> number;
                Document mine = behind(document, bits & ((static_cast<offset_t>(1) << own_bit) - 1), step_at);
#pragma unroll
                for (int p = 0; p < RUN; ++p) {
                    position.at[p] = at + p - mine.start;
                    number.at[p] = static_cast<int>(mine.number);
                    mine = behind(mine, bits >> (own_bit + p) & 1, at + p);
                }
                if (positions != nullptr) *reinterpret_cast<Pack<long_t, RUN>*>(positions + to) = position;
                if (documents != nullptr) *reinterpret_cast<Pack<int, RUN>*>(documents + to) = number;
            }
        }
        document = behind(document, bits, step_at);
    }
}

#else
#error "tokens: define one of PHASE_MARK, PHASE_WRITE"
#endif
