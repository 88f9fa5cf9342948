// The arithmetic of the kernels: every operation that can round, written out, and the types that come out.
//
// Law: PTX without .ftz, because CuPy compiles with -ftz=true and compilers may contract; one rounding each, to nearest,
// ties to even. Where there is no GPU, tests/kernels/cuda_shim.h stands for CUDA.
// launch.py puts this text in the place of its #include: NVRTC has no search path here.

#define DEVICE static __device__ __forceinline__

typedef unsigned char byte_t;
typedef unsigned long long offset_t;  // a batch may hold more than 2^32 bytes or elements

DEVICE float fma_rn(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    float result;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
    return result;
#else
    return fmaf(a, b, c);
#endif
}

// name(a, b), and name(a): one operation, by PTX on a GPU and by what the host has for it.
#ifdef __CUDA_ARCH__
#define OF_TWO(name, ptx, host) \
    DEVICE float name(float a, float b) { \
        float result; \
        asm(ptx " %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b)); \
        return result; \
    }
#define OF_ONE(name, ptx, host) \
    DEVICE float name(float a) { \
        float result; \
        asm(ptx " %0, %1;" : "=f"(result) : "f"(a)); \
        return result; \
    }
#else
#define OF_TWO(name, ptx, host) \
    DEVICE float name(float a, float b) { return host; }
#define OF_ONE(name, ptx, host) \
    DEVICE float name(float a) { return host; }
#endif

OF_TWO(mul_rn, "mul.rn.f32", a * b)
OF_TWO(add_rn, "add.rn.f32", a + b)
OF_TWO(sub_rn, "sub.rn.f32", a - b)

// By the bits: a comparison of floats would take a subnormal for 0.
DEVICE bool is_one(float v) { return __float_as_uint(v) == 0x3f800000u; }
DEVICE bool is_zero(float v) { return __float_as_uint(v) << 1 == 0; }

// What is left of `a` when `share` of it is kept and the rest is `b`: a product each, one sum, three roundings.
DEVICE float mixed(float a, float b, float share) {
    if (is_one(share)) return a;
    if (is_zero(share)) return b;
    return add_rn(mul_rn(a, share), mul_rn(b, sub_rn(1.0f, share)));
}

// Whether (y, x) lies in a rectangle y, x, height, width.
DEVICE bool is_inside(const int* box, unsigned y, unsigned x) {
    // In 32 unsigned bits what lies before the rectangle is far behind it, and a size of 0 or less holds nothing.
    return y - static_cast<unsigned>(box[0]) < static_cast<unsigned>(box[2] > 0 ? box[2] : 0) &&
           x - static_cast<unsigned>(box[1]) < static_cast<unsigned>(box[3] > 0 ? box[3] : 0);
}

// out_t, chosen by OUT_FLOAT32 | OUT_FLOAT16 | OUT_BFLOAT16 | OUT_UINT8: `cast` rounds to it.
#if defined(OUT_FLOAT32)
typedef float out_t;
DEVICE out_t cast(float v) { return v; }
#elif defined(OUT_FLOAT16)
typedef unsigned short out_t;
DEVICE out_t cast(float v) {
#ifdef __CUDA_ARCH__
    out_t result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(v));
    return result;
#else
    return float_to_half_bits(v);
#endif
}
#elif defined(OUT_BFLOAT16)
typedef unsigned short out_t;
DEVICE out_t cast(float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    out_t result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(v));
    return result;
#else  // sm_75 lacks the instruction
    const unsigned bits = __float_as_uint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // any NaN, as the instruction has it
    return static_cast<out_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}
#elif defined(OUT_UINT8)
typedef byte_t out_t;
DEVICE out_t cast(float v) {  // v is within 0..255
#ifdef __CUDA_ARCH__
    unsigned result;
    asm("cvt.rni.u32.f32 %0, %1;" : "=r"(result) : "f"(v));
    return static_cast<out_t>(result);
#else
    return static_cast<out_t>(rintf(v));
#endif
}
#else
#error "define one of OUT_FLOAT32, OUT_FLOAT16, OUT_BFLOAT16, OUT_UINT8"
#endif
