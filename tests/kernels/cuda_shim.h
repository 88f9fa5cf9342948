// Enough of CUDA C++ for g++ to compile a kernel's .cu unchanged: the threads of a block run one after another, each up to
// its end or to a barrier (cuda_shim_block.h). kernels_host.py writes the file that includes this.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "cuda_shim_block.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static  // one block runs at a time
#define __syncthreads() shim::block().wait(shim::Barrier::block)
#define __syncwarp() shim::block().wait(shim::Barrier::warp)

static inline unsigned atomicAdd(unsigned* at, unsigned more) {  // a thread of the host has the whole block
    const unsigned before = *at;
    *at += more;
    return before;
}

static inline unsigned __float_as_uint(float v) {
    unsigned bits;
    std::memcpy(&bits, &v, sizeof bits);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
}

static inline float half_bits_to_float(unsigned short half) {
    const unsigned sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
    if (size >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
    if (size >= 0x400u) return __uint_as_float(sign | ((size << 13) + 0x38000000u));
    const float small = static_cast<float>(size) / 16777216.0f;  // subnormal: a count of 2^-24
    return sign ? -small : small;
}

// cvt.rn.f16.f32: to nearest, ties to even, 65520 and above to infinity, any NaN to 0x7fff.
static inline unsigned short float_to_half_bits(float v) {
    const unsigned bits = __float_as_uint(v), sign = (bits >> 16) & 0x8000u;
    unsigned size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fff;
    if (size >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
    if (size < 0x38800000u)  // subnormal there: a count of 2^-24
        return static_cast<unsigned short>(sign | static_cast<unsigned>(std::lrintf(std::fabs(v) * 16777216.0f)));
    size += 0xfffu + ((size >> 13) & 1u);
    return static_cast<unsigned short>(sign | ((size - 0x38000000u) >> 13));
}

namespace shim {

// By the kernel's type and not by the kernel: what is below is compiled once for all variants that take the same.
template <class Kernel>
struct Host;

template <class... Args>
struct Host<void (*)(Args...)> {
    // Runs the blocks from `begin` up to `end` of a launch of `grid` blocks of `block` threads.
    static void run(void (*kernel)(Args...), const Index3* grid, const Index3* block, const Index3* begin,
                    const Index3* end, Args... args) {
        const std::lock_guard held(shim::block().launch);
        gridDim = *grid;
        blockDim = *block;
        for (unsigned bz = begin->z; bz < end->z; ++bz)
            for (unsigned by = begin->y; by < end->y; ++by)
                for (unsigned bx = begin->x; bx < end->x; ++bx) {
                    blockIdx = {bx, by, bz};
                    shim::block().run([&] { kernel(args...); });
                }
    }

    // One launch from stdin, its outputs to stdout; every array lies in a heap block of exactly its size, so that the
    // address sanitizer sees a read or a write one byte too far.
    static void serve(void (*kernel)(Args...)) {
        const Index3 grid = read<Index3>(), block = read<Index3>(), begin{0, 0, 0};
        std::size_t sizes[sizeof...(Args)] = {};
        std::size_t next = 0;
        std::tuple<Args...> args{argument<Args>(sizes[next++])...};  // braces: evaluated from left to right
        std::apply([&](Args... each) { run(kernel, &grid, &block, &begin, &grid, each...); }, args);
        next = 0;
        std::apply([&](Args... each) { (write_and_free<Args>(each, sizes[next++]), ...); }, args);
    }

   private:
    static void read_bytes(void* to, std::size_t size) {
        if (size != 0 && std::fread(to, 1, size, stdin) != size) {
            std::fputs("cuda_shim: the job on stdin is cut short\n", stderr);
            std::exit(2);
        }
    }
    template <class T>
    static T read() {
        T value;
        read_bytes(&value, sizeof value);
        return value;
    }
    template <class T>
    static T argument(std::size_t& size) {
        if constexpr (std::is_pointer_v<T>) {
            size = read<std::uint64_t>();
            if (size == 0) return nullptr;
            void* memory = std::malloc(size);
            read_bytes(memory, size);
            return static_cast<T>(memory);
        } else {
            return read<T>();
        }
    }
    template <class T>
    static void write_and_free(T value, std::size_t size) {
        if constexpr (std::is_pointer_v<T>) {
            if constexpr (!std::is_const_v<std::remove_pointer_t<T>>)
                if (size != 0) std::fwrite(value, 1, size, stdout);
            std::free(const_cast<std::remove_const_t<std::remove_pointer_t<T>>*>(value));
        }
    }
};

}  // namespace shim
