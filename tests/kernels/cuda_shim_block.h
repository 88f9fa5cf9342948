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
        const unsigned size = blockDim.x * blockDim.y * blockDim.z;
        while (fibers_.size() < size) fibers_.push_back(std::make_unique<Fiber>());
        for (unsigned t = 0; t < size; ++t) begin(*fibers_[t], t);
        do {
            for (unsigned t = 0; t < size; ++t)
                if (fibers_[t]->goes_on) swapcontext(&scheduler_, &(running_ = fibers_[t].get())->context);
        } while (release(size));
    }

    // The calling thread waits.
    void wait(Barrier kind) {
        Fiber& mine = *running_;
        mine.waits = kind;
        mine.goes_on = false;
        swapcontext(&mine.context, &scheduler_);
        mine.waits = Barrier::none;
        threadIdx = mine.index;
    }

   private:
    static constexpr std::size_t stack_size = 64 << 10;
    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack{new char[stack_size]};
        Index3 index;
        Barrier waits;
        bool goes_on, alive;
    };

    void begin(Fiber& fiber, unsigned thread) {
        fiber.index = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
        fiber.waits = Barrier::none;
        fiber.goes_on = fiber.alive = true;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = stack_size;
        fiber.context.uc_link = &scheduler_;
        makecontext(&fiber.context, &Block::enter, 0);
    }

    static void enter();

    void work() {
        threadIdx = running_->index;
        (*kernel_)();
        running_->goes_on = running_->alive = false;
    }

    // Lets go on whoever's barrier is complete; false where nobody waits any more.
    bool release(unsigned size) {
        unsigned alive = 0, at_block = 0;
        for (unsigned t = 0; t < size; ++t) {
            const Fiber &mine = *fibers_[t], &first = *fibers_[t / 32 * 32];
            if (mine.alive != first.alive || (mine.alive && mine.waits != first.waits)) {
                std::fprintf(stderr, "cuda_shim: lanes of the warp of thread %u part at a barrier\n", t);
                std::abort();
            }
            alive += mine.alive;
            at_block += mine.alive && mine.waits == Barrier::block;
        }
        for (unsigned t = 0; t < size; ++t)
            fibers_[t]->goes_on = fibers_[t]->alive && (at_block == alive || fibers_[t]->waits == Barrier::warp);
        return alive != 0;
    }

    const std::function<void()>* kernel_ = nullptr;
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
