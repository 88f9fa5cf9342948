// Colour as torchvision v2 has it on uint8: operations of float32, rounded as torch rounds them, to whole levels.

OF_TWO(div_rn, "div.rn.f32", a / b)
OF_ONE(cut, "cvt.rzi.f32.f32", truncf(a))     // towards 0: to a whole level, for values that are not negative
OF_ONE(rounded, "cvt.rni.f32.f32", rintf(a))  // to the nearest, ties to even

// NaN becomes 0.
DEVICE float clamped(float v, float top) {
#ifdef __CUDA_ARCH__
    float result;
    asm("max.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(v));
    asm("min.f32 %0, %1, %2;" : "=f"(result) : "f"(result), "f"(top));
    return result;
#else
    return v > 0.0f ? (v < top ? v : top) : 0.0f;
#endif
}

DEVICE float level(float v) { return cut(clamped(v, 255.0f)); }

// The same as a number that counts.
DEVICE unsigned whole(float v) {
#ifdef __CUDA_ARCH__
    unsigned result;
    asm("cvt.rzi.u32.f32 %0, %1;" : "=r"(result) : "f"(v));
    return result;
#else
    return static_cast<unsigned>(v);
#endif
}

// Floats that are not negative lie in the order of their bits, and -ftz cannot reach a comparison of those; as numbers
// with a sign, what is negative comes before them.
DEVICE int order(float v) { return static_cast<int>(__float_as_uint(v)); }

struct Pixel {
    float r, g, b;
};

DEVICE float gray(const Pixel& p) { return fma_rn(p.b, 0.114f, fma_rn(p.g, 0.587f, mul_rn(p.r, 0.2989f))); }

// v * factor + other * rest, rounded twice.
DEVICE float blend(float v, float other, float factor, float rest) {
    return level(fma_rn(other, rest, mul_rn(v, factor)));
}

DEVICE Pixel blend(const Pixel& p, float other, float factor, float rest) {
    return {blend(p.r, other, factor, rest), blend(p.g, other, factor, rest), blend(p.b, other, factor, rest)};
}

// What `made` says of each channel of two pixels.
template <class Made>
DEVICE Pixel by_channel(const Pixel& p, const Pixel& q, Made made) {
    return {made(p.r, q.r), made(p.g, q.g), made(p.b, q.b)};
}

// A number that names no kind up to `most` is 0, which is nothing.
DEVICE int kind_of(float number, float most) {
    const bool in_range = order(number) >= order(1.0f) && order(number) <= order(most);
    const unsigned kind = in_range ? whole(number) : 0;
    return order(static_cast<float>(kind)) == order(number) ? static_cast<int>(kind) : 0;
}

DEVICE Pixel pixel_at(const byte_t* at) {
    return {static_cast<float>(at[0]), static_cast<float>(at[1]), static_cast<float>(at[2])};
}
