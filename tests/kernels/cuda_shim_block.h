// A block of threads on one thread of the host: each runs until it ends or waits at a barrier, and goes on once all that
// it waits for wait there too. What a kernel shares is then as it would be on a GPU, and a barrier that some lanes of a
// warp do not come to ends the program by name, where a GPU would hang or go on with what is not there yet.
#pragma once
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

struct Index3 {
    unsigned x, y, z;
};
static thread_local Index3 blockIdx, threadIdx, blockDim, gridDim;

namespace shim {
namespace {  // each kernel's library has its own: a loader would make one of what they all name

enum class Barrier { none, warp, block };

class Block {
   public:
    // Runs `kernel` once for each thread of a block of blockDim.
    void run(const std::function<void()>& kernel) {
        kernel_ = &kernel;
        next_ = 0;
        size_ = blockDim.x * blockDim.y * blockDim.z;
        for (std::size_t used = 0; next_ < size_; ++used) {
            // A fiber takes one thread after the other until one of them waits: that one keeps it.
            if (used == fibers_.size()) fibers_.push_back(std::make_unique<Fiber>());
            resume(*fibers_[used]);
        }
        while (release()) {
        }
    }

    // The calling thread waits.
    void wait(Barrier kind) {
        Fiber& mine = *running_;
        mine.waits = kind;
        const Index3 index = threadIdx;
        swapcontext(&mine.context, &scheduler_);
        threadIdx = index;
    }

   private:
    static constexpr std::size_t stack_size = 64 << 10;
    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack{new char[stack_size]};
        unsigned thread = 0;
        Barrier waits = Barrier::none;
        bool begun = false, alive = false;
    };

    void resume(Fiber& fiber) {
        running_ = &fiber;
        fiber.waits = Barrier::none;
        if (!fiber.begun) {
            fiber.begun = true;
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = stack_size;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, &Block::enter, 0);
        }
        swapcontext(&scheduler_, &fiber.context);
    }

    static void enter();

    void work() {
        for (Fiber& mine = *running_;; swapcontext(&mine.context, &scheduler_)) {
            while (next_ < size_) {
                mine.thread = next_++;
                mine.alive = true;
                threadIdx = {mine.thread % blockDim.x, mine.thread / blockDim.x % blockDim.y,
                             mine.thread / blockDim.x / blockDim.y};
                (*kernel_)();
                mine.alive = false;
            }
        }
    }

    // Lets go on whoever's barrier is complete; false where nobody waits any more.
    bool release() {
        unsigned alive = 0, at_block = 0;
        std::vector<Fiber*> of(size_, nullptr);
        for (auto& fiber : fibers_)
            if (fiber->alive) {
                of[fiber->thread] = fiber.get();
                ++alive;
                at_block += fiber->waits == Barrier::block;
            }
        for (unsigned first = 0; first < size_; first += 32) {
            const unsigned end = first + 32 < size_ ? first + 32 : size_;
            for (unsigned t = first; t < end; ++t)
                if ((of[t] != nullptr) != (of[first] != nullptr) || (of[t] && of[t]->waits != of[first]->waits)) {
                    std::fprintf(stderr, "cuda_shim: lanes of the warp of threads %u to %u part at a barrier\n", first, end - 1);
                    std::abort();
                }
        }
        const bool whole = at_block == alive;
        for (Fiber* fiber : of)
            if (fiber != nullptr && (whole || fiber->waits == Barrier::warp)) resume(*fiber);
        return alive != 0;
    }

    const std::function<void()>* kernel_ = nullptr;
    unsigned next_ = 0, size_ = 0;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    Fiber* running_ = nullptr;
    ucontext_t scheduler_;
};

inline Block& block() {
    static thread_local Block one;
    return one;
}

inline void Block::enter() { block().work(); }

}  // namespace
}  // namespace shim
