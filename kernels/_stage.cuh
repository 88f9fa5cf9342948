// What a warp writes, side by side: each lane has COUNT elements of a run, and it leaves as whole vectors.
//
// Law: neighbouring lanes write neighbouring vectors. A lane that wrote its own elements would leave gaps of all that it
// has not written yet, and each sector of 32 bytes would go to the L2 cache two or three times.
// VECTOR, an option of the compiler, is the bytes of a store: 16, or fewer where samples do not begin at multiples of it.

template <int BYTES>
struct alignas(BYTES) Vector {
    byte_t at[BYTES];
};

// The largest power of two, up to 16, that divides the bytes of a lane: it moves into the stage in such pieces.
template <int BYTES>
struct PieceOf {
    static constexpr int size = BYTES % 16 == 0 ? 16 : BYTES % 8 == 0 ? 8 : BYTES % 4 == 0 ? 4 : BYTES % 2 == 0 ? 2 : 1;
};

template <class T, int COUNT>
union alignas(PieceOf<COUNT * sizeof(T)>::size) Lane {
    T at[COUNT];
    Vector<PieceOf<COUNT * sizeof(T)>::size> piece[COUNT * sizeof(T) / PieceOf<COUNT * sizeof(T)>::size];
};

// Memory that the block shares, for one warp. Vectors are read from it.
template <class T, int COUNT>
struct alignas(16) Stage {
    Lane<T, COUNT> lane[32];
};

// The elements of the first `lanes` lanes to `to` and on. All lanes of the warp come here, and `stage` is this warp's
// alone. `to` and lanes * COUNT * sizeof(T) are multiples of VECTOR.
template <class T, int COUNT>
DEVICE void store_run(T* to, unsigned lanes, const Lane<T, COUNT>& mine, Stage<T, COUNT>& stage) {
    const unsigned lane = threadIdx.x % 32;
    __syncwarp();  // what was there before has been read
    if (lane < lanes) {
#pragma unroll
        for (unsigned i = 0; i < sizeof(mine) / sizeof(mine.piece[0]); ++i) stage.lane[lane].piece[i] = mine.piece[i];
    }
    __syncwarp();
    const unsigned vectors = lanes * (COUNT * sizeof(T)) / VECTOR;
#pragma unroll
    for (unsigned i = 0; i < (COUNT * sizeof(T) + VECTOR - 1) / VECTOR; ++i) {
        const unsigned v = lane + 32 * i;
        if (v < vectors) reinterpret_cast<Vector<VECTOR>*>(to)[v] = reinterpret_cast<const Vector<VECTOR>*>(&stage)[v];
    }
}
