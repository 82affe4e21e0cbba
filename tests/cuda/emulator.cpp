// Runs the kernels of src/kernels/cuda on a CPU, for tests on machines without a GPU.
//
//     c++ -std=c++20 -O2 -pthread -I src/kernels/cuda tests/cuda/emulator.cpp -o emulator
//
// with -fsanitize=address,undefined besides, it ends at the first access past the end of a buffer. (The sanitizer
// warns that it does not fully support swapcontext; it is told of every switch.)
//
// Reads launches from standard input until it ends, all numbers little-endian: the length of the kernel's name (u32),
// the name, the grid (3 u32), the threads of a block (u32), the number of arguments (u32), and each argument as a
// byte and what follows: 0: a null pointer; 1: a buffer, its bytes (u64) and its contents; 2: a u32; 3: an f32. After
// each launch it writes the contents of all buffers in their order to standard output. What cannot be run ends it
// with a sentence on standard error and exit 1.

#define SCONCE_EMULATED

#include "shim.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention.cu"
#include "linear.cu"
#include "lookup.cu"
#include "norm.cu"
#include "pooling.cu"
#include "rotary.cu"

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ADDRESS_SANITIZER
#endif
#endif
#ifdef WITH_ADDRESS_SANITIZER
#include <sanitizer/common_interface_defs.h>
#endif

static_assert(std::endian::native == std::endian::little);

namespace emulator {
namespace {

constexpr size_t STACK = 256 * 1024;
constexpr unsigned MOST_THREADS = 1024;

struct Copy {
    void* to;
    const void* from;  // null: zeros
    size_t bytes;
};

// One for each thread of a block, begun once: between blocks it waits in `switch_from`.
struct Fiber {
    ucontext_t context;
    char* stack = nullptr;
    bool done = false;
    std::vector<Copy> copies;
};

// What has been shown for the last two instructions of a warp. A lane can be one instruction ahead of another one,
// for the instruction after that waits for all.
struct Warp {
    struct Round {
        const char* instruction;
        unsigned arrived = 0;
        Shown shown[32];
    } rounds[2];
    // Instructions that each lane has come to.
    unsigned long come[32] = {};
};

ucontext_t home;
std::unique_ptr<Fiber[]> fibers;
std::vector<Warp> warps;
unsigned threads, alive, running;
// In which order the threads of a block take turns. It changes from block to block, so that what misses a barrier
// does not always go well: odd blocks run their threads backwards, and in two blocks of four a warp goes on for as
// long as its lanes wait for nothing but each other.
bool backwards, warp_first;
unsigned long barriers_passed;
unsigned at_barrier;
// Turns since anything last went on.
unsigned idle;
std::map<const void*, std::pair<void*, size_t>> arrays;
const std::function<void()>* body;

#ifdef WITH_ADDRESS_SANITIZER
// The stack that the process began on.
const void* home_stack;
size_t home_size;

#endif

void start(unsigned thread) {
    running = thread;
    threadIdx = {thread, 0, 0};
}

// Lets the next thread that has not ended go on, of the same warp or of any; or, when none is left, the launch.
void switch_from(Fiber& from, bool same_warp) {
    const Fiber* to = nullptr;
    if (alive > 0) {
        const unsigned first = same_warp ? running / 32 * 32 : 0, count = same_warp ? 32 : threads;
        unsigned next = running;
        do next = first + (next - first + (backwards ? count - 1 : 1)) % count;
        while (fibers[next].done);
        if (next == running) return;
        to = &fibers[next];
        start(next);
    }
#ifdef WITH_ADDRESS_SANITIZER
    void* kept = nullptr;
    __sanitizer_start_switch_fiber(&kept, to ? to->stack : home_stack, to ? STACK : home_size);
#endif
    swapcontext(&from.context, to ? &to->context : &home);
#ifdef WITH_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#endif
}

void wait_a_turn(bool same_warp) {
    if (++idle > 2 * threads) fail("the threads of a block wait for each other for ever");
    switch_from(fibers[running], same_warp);
}

void fiber_main() {
#ifdef WITH_ADDRESS_SANITIZER
    const void* stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
    if (home_stack == nullptr) {
        home_stack = stack;
        home_size = bytes;
    }
#endif
    for (;;) {
        (*body)();
        Fiber& mine = fibers[running];
        if (!mine.copies.empty()) fail("a thread ends with copies on their way");
        if (at_barrier > 0) fail("a thread ends while others are at a barrier");
        mine.done = true;
        --alive;
        idle = 0;
        switch_from(mine, false);
    }
}

void make_fiber(Fiber& fiber) {
    void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) fail("there is no memory for the stacks of threads");
    fiber.stack = static_cast<char*>(stack);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
    // Or else the address sanitizer wipes what it knows of the stack at every switch, which takes long.
    fiber.context.uc_stack.ss_size = 0;
}

void run_block() {
    alive = threads;
    at_barrier = 0;
    idle = 0;
    warps.assign(threads / 32, {});
    for (unsigned i = 0; i < threads; ++i) fibers[i].done = false;
    start(backwards ? threads - 1 : 0);
#ifdef WITH_ADDRESS_SANITIZER
    void* kept;
    __sanitizer_start_switch_fiber(&kept, fibers[running].stack, STACK);
#endif
    swapcontext(&home, &fibers[running].context);
#ifdef WITH_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(kept, nullptr, nullptr);
#endif
    for (const auto& [key, array] : arrays) free(array.first);
    arrays.clear();
}

void run_grid(const unsigned (&grid)[3], unsigned block, const std::function<void()>& kernel) {
    threads = block;
    body = &kernel;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    if (!fibers) fibers = std::make_unique<Fiber[]>(MOST_THREADS);
    for (unsigned i = 0; i < block; ++i) {
        if (fibers[i].stack == nullptr) make_fiber(fibers[i]);
    }
    unsigned blocks = 0;
    for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                backwards = blocks % 2 == 1;
                warp_first = blocks / 2 % 2 == 1;
                ++blocks;
                run_block();
            }
        }
    }
}

}  // namespace

void fail(const char* sentence) {
    fprintf(stderr, "%s\n", sentence);
    exit(1);
}

void* shared(const void* key, size_t bytes) {
    auto [at, made] = arrays.try_emplace(key, nullptr, bytes);
    if (made) {
        at->second.first = malloc(bytes);
        memset(at->second.first, 0xff, bytes);
    }
    return at->second.first;
}

void block_barrier() {
    if (alive < threads) fail("a thread has ended, and others are at a barrier");
    const unsigned long mine = barriers_passed;
    idle = 0;
    if (++at_barrier == threads) {
        at_barrier = 0;
        ++barriers_passed;
    }
    while (mine == barriers_passed) wait_a_turn(false);
}

const Shown* exchange(const char* instruction, const Shown& mine) {
    Warp& warp = warps[running / 32];
    const unsigned lane = running % 32;
    Warp::Round& round = warp.rounds[warp.come[lane]++ % 2];
    if (round.arrived == 32) round.arrived = 0;
    if (round.arrived == 0) round.instruction = instruction;
    if (strcmp(round.instruction, instruction) != 0) fail("the lanes of a warp are at different instructions");
    round.shown[lane] = mine;
    ++round.arrived;
    idle = 0;
    while (round.arrived < 32) wait_a_turn(warp_first);
    return round.shown;
}

void copy_later(void* to, const void* from, size_t bytes) {
    memset(to, 0xff, bytes);
    fibers[running].copies.push_back({to, from, bytes});
}

void copies_arrive() {
    for (const Copy& copy : fibers[running].copies) {
        if (copy.from == nullptr) {
            memset(copy.to, 0, copy.bytes);
        } else {
            memcpy(copy.to, copy.from, copy.bytes);
        }
    }
    fibers[running].copies.clear();
}

}  // namespace emulator

namespace {

struct Argument {
    uint8_t kind;
    // An allocation of its own and of the exact size, for the address sanitizer.
    std::unique_ptr<char[]> buffer;
    uint64_t bytes = 0;
    uint32_t word = 0;
};

enum Kind : uint8_t { NONE = 0, BUFFER = 1, COUNT = 2, NUMBER = 3 };

// Whether an argument is one of C++ type T.
template <typename T>
bool fits(const Argument& argument) {
    if constexpr (std::is_pointer_v<T>) {
        return argument.kind == NONE ||
               (argument.kind == BUFFER && argument.bytes % sizeof(std::remove_pointer_t<T>) == 0);
    } else if constexpr (std::is_same_v<T, float>) {
        return argument.kind == NUMBER;
    } else {
        static_assert(std::is_same_v<T, unsigned>);
        return argument.kind == COUNT;
    }
}

template <typename T>
T as(const Argument& argument) {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(argument.buffer.get());
    } else {
        return std::bit_cast<T>(argument.word);
    }
}

// Runs a kernel with these arguments; false where they are not of its signature.
using Launch =
    std::function<bool(const unsigned (&grid)[3], unsigned block, const std::vector<Argument>& arguments)>;

template <typename... T>
Launch launch(void (*kernel)(T...)) {
    return [kernel](const unsigned(&grid)[3], unsigned block, const std::vector<Argument>& arguments) {
        return [&]<size_t... I>(std::index_sequence<I...>) {
            if (arguments.size() != sizeof...(T) || !(fits<T>(arguments[I]) && ...)) return false;
            emulator::run_grid(grid, block, [&] { kernel(as<T>(arguments[I])...); });
            return true;
        }(std::index_sequence_for<T...>());
    };
}

#define NAMED(name) {#name, launch(name)},
#define OF_ALL_TYPES(name) NAMED(name##_f32) NAMED(name##_f16) NAMED(name##_bf16)
#define OF_ALL_SIZES(name) NAMED(name##_32) NAMED(name##_64) NAMED(name##_96) NAMED(name##_128)

// A line a kernel.
const std::map<std::string, Launch> KERNELS = {
    OF_ALL_TYPES(lookup)
    OF_ALL_TYPES(linear)
    OF_ALL_TYPES(norm)
    OF_ALL_TYPES(rotate)
    OF_ALL_SIZES(attention_f16)
    OF_ALL_SIZES(attention_bf16)
    OF_ALL_TYPES(pool)
};

void read_exactly(void* to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) emulator::fail("standard input ends in the middle of a launch");
}

template <typename T>
T read_number() {
    T number;
    read_exactly(&number, sizeof number);
    return number;
}

size_t read_count(const std::string& what) {
    const uint32_t count = read_number<uint32_t>();
    if (count > 255) emulator::fail((std::to_string(count) + " " + what + " are too many").c_str());
    return count;
}

Argument read_argument() {
    Argument argument;
    argument.kind = read_number<uint8_t>();
    switch (argument.kind) {
        case NONE: break;
        case BUFFER:
            argument.bytes = read_number<uint64_t>();
            argument.buffer.reset(new (std::nothrow) char[argument.bytes]);
            if (!argument.buffer) emulator::fail("there is no memory for a buffer");
            read_exactly(argument.buffer.get(), argument.bytes);
            break;
        case COUNT:
        case NUMBER: argument.word = read_number<uint32_t>(); break;
        default: emulator::fail("there is no such kind of argument");
    }
    return argument;
}

}  // namespace

int main() {
    for (int c; (c = getchar()) != EOF;) {
        ungetc(c, stdin);
        std::string name(read_count("bytes of a name"), ' ');
        read_exactly(name.data(), name.size());
        unsigned grid[3];
        read_exactly(grid, sizeof grid);
        const unsigned block = read_number<uint32_t>();
        std::vector<Argument> arguments(read_count("arguments"));
        for (Argument& argument : arguments) argument = read_argument();

        const auto kernel = KERNELS.find(name);
        if (kernel == KERNELS.end()) emulator::fail(("there is no kernel " + name).c_str());
        if (block == 0 || block > emulator::MOST_THREADS || block % 32 != 0)
            emulator::fail("a block is 32 to 1024 threads in whole warps");
        if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT_MAX) emulator::fail("the grid is too large");
        if (!kernel->second(grid, block, arguments)) emulator::fail((name + " takes other arguments").c_str());
        for (const Argument& argument : arguments) {
            if (argument.bytes > 0) fwrite(argument.buffer.get(), 1, argument.bytes, stdout);
        }
        fflush(stdout);
    }
}
