// A block of threads on one thread of the host: each runs until it ends or waits at a barrier, and goes on once all that
// it waits for wait there too. What a kernel shares is then as it would be on a GPU, and a barrier that some lanes of a
// warp do not come to ends the program by name, where a GPU would hang or go on with what is not there yet.
//
// A thread has a stack that it keeps for block after block, and is left and entered by a jump, as swapcontext asks the
// system for the mask of signals each time: that is more than kernels compute between two barriers. Whoever waits jumps
// to the next one himself. Stacks are no power of two apart, or the ends of all would share a few sets of the cache.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

struct Index3 {
    unsigned x, y, z;
};
static Index3 blockIdx, threadIdx, blockDim, gridDim;  // of the one launch that runs at a time

#ifdef __x86_64__
// Leaves this stack at `from`, and goes on where `to` was left: what a function has to keep lies on the stack.
extern "C" __attribute__((visibility("hidden"))) void shim_jump(void** from, void* to);
asm(R"(
.text
.hidden shim_jump
shim_jump:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
)");
#endif

namespace shim {
namespace {  // each kernel's library has its own: a loader would make one of what they all name

constexpr std::size_t stack_size = (64 << 10) + 5 * 64;
constexpr unsigned most_threads = 1024;  // of a block, on every GPU

#ifdef __x86_64__
using Place = void*;
inline void jump(Place& from, Place& to) { shim_jump(&from, to); }

// Where `enter` begins on that stack; it never returns.
inline void set_up(Place& place, char* stack, void (*enter)()) {
    const auto end = reinterpret_cast<std::uintptr_t>(stack + stack_size) / 16 * 16;
    void** top = reinterpret_cast<void**>(end) - 8;
    std::fill_n(top, 8, nullptr);  // six registers, `enter`, and no caller
    top[6] = reinterpret_cast<void*>(enter);
    place = top;
}
#else
using Place = ucontext_t;
inline void jump(Place& from, Place& to) { swapcontext(&from, &to); }

inline void set_up(Place& place, char* stack, void (*enter)()) {
    getcontext(&place);
    place.uc_stack.ss_sp = stack;
    place.uc_stack.ss_size = stack_size;
    makecontext(&place, enter, 0);
}
#endif

enum class Barrier { none, warp, block };

class Block {
   public:
    std::mutex launch;  // who runs blocks has it: of a kernel, one launch runs at a time

    Block() { fibers_.reserve(most_threads); }

    // Runs `kernel` once for each thread of a block of blockDim.
    void run(const std::function<void()>& kernel) {
        kernel_ = &kernel;
        size_ = blockDim.x * blockDim.y * blockDim.z;
        if (size_ > most_threads) std::abort();
        for (unsigned t = fibers_.size(); t < size_; ++t) {
            fibers_.emplace_back();
            set_up(fibers_[t].place, fibers_[t].stack.get(), &Block::enter);
        }
        for (unsigned t = 0; t < size_; ++t) {
            Fiber& fiber = fibers_[t];
            fiber.index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
            fiber.waits = Barrier::none;
            fiber.goes_on = fiber.alive = true;
        }
        do {
            running_ = 0;
            if (comes_next()) jump(scheduler_, fibers_[running_].place);
        } while (release());
    }

    // The calling thread waits.
    void wait(Barrier kind) {
        Fiber& mine = fibers_[running_];
        mine.waits = kind;
        leave(mine);
        mine.waits = Barrier::none;
        threadIdx = mine.index;
    }

   private:
    struct Fiber {
        Place place;
        std::unique_ptr<char[]> stack{new char[stack_size]};
        Index3 index;
        Barrier waits;
        bool goes_on, alive;
    };

    static void enter();

    // The thread that runs is, from itself on, the first that may go on; false where there is none.
    bool comes_next() {
        while (running_ < size_ && !fibers_[running_].goes_on) ++running_;
        return running_ < size_;
    }

    void leave(Fiber& mine) {
        mine.goes_on = false;
        jump(mine.place, comes_next() ? fibers_[running_].place : scheduler_);
    }

    // A thread of block after block.
    void work() {
        for (;;) {
            Fiber& mine = fibers_[running_];
            threadIdx = mine.index;
            (*kernel_)();
            mine.alive = false;
            leave(mine);
        }
    }

    // Lets go on whoever's barrier is complete; false where nobody waits any more.
    bool release() {
        unsigned alive = 0, at_block = 0;
        for (unsigned t = 0; t < size_; ++t) {
            const Fiber &mine = fibers_[t], &first = fibers_[t / 32 * 32];
            if (mine.alive != first.alive || (mine.alive && mine.waits != first.waits)) {
                std::fprintf(stderr, "cuda_shim: lanes of the warp of thread %u part at a barrier\n", t);
                std::abort();
            }
            alive += mine.alive;
            at_block += mine.alive && mine.waits == Barrier::block;
        }
        for (unsigned t = 0; t < size_; ++t)
            fibers_[t].goes_on = fibers_[t].alive && (at_block == alive || fibers_[t].waits == Barrier::warp);
        return alive != 0;
    }

    const std::function<void()>* kernel_ = nullptr;
    std::vector<Fiber> fibers_;  // none is ever moved: a place may point into itself
    unsigned size_ = 0, running_ = 0;
    Place scheduler_;
};

inline Block& block() {
    static Block one;
    return one;
}

inline void Block::enter() { block().work(); }

}  // namespace
}  // namespace shim
