// Emulates the kernels of src/kernels/cuda on a CPU, for tests on machines without a GPU.
//
//     c++ -std=c++20 -O2 -pthread -I src/kernels/cuda tests/cuda/emulator.cpp -o emulator
//
// With -fsanitize=address,undefined it aborts at the first access past the end of a buffer. (The sanitizer warns that
// it does not fully support swapcontext; every switch is announced to it.)
//
// Protocol: launches on standard input until its end, little-endian: length of the kernel's name (u32), the name, the
// grid (3 u32), threads of a block (u32), number of arguments (u32), and each argument as a tag byte with its payload:
// 0: a null pointer; 1: a buffer, its length in bytes (u64) and its contents; 2: a u32; 3: an f32. After each launch
// the contents of all buffers are written to standard output in their order. An invalid launch ends the process with a
// message on standard error and exit code 1.

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
constexpr unsigned MAX_THREADS = 1024;

struct Copy {
    void* to;
    const void* from;  // null: zeros
    size_t bytes;
};

// A thread of a block. Fibers are created once; between blocks they wait in `switch_from`.
struct Fiber {
    ucontext_t context;
    char* stack = nullptr;
    bool done = false;
    std::vector<Copy> copies;
};

// The values that the lanes of a warp have exchanged in its last two warp instructions. A lane can be at most one
// instruction ahead of another, because the next one waits for all lanes.
struct Warp {
    struct Round {
        const char* instruction;
        unsigned arrived = 0;
        LaneValues values[32];
    } rounds[2];
    // Warp instructions that each lane has reached.
    unsigned long arrivals[32] = {};
};

ucontext_t home;
std::unique_ptr<Fiber[]> fibers;
std::vector<Warp> warps;
unsigned threads, alive, running;
// The scheduling order of the threads of a block. It varies, so that a missing barrier does not go unnoticed: odd
// blocks run their threads in reverse, and in two blocks of four a warp runs until its lanes wait for another warp.
bool reversed, warp_first;
unsigned long barriers_passed;
unsigned at_barrier;
// Turns without progress.
unsigned idle_turns;
std::map<const void*, std::pair<void*, size_t>> arrays;
const std::function<void()>* body;

#ifdef WITH_ADDRESS_SANITIZER
// The stack of the main thread.
const void* home_stack;
size_t home_size;

#endif

void start(unsigned thread) {
    running = thread;
    threadIdx = {thread, 0, 0};
}

// Switches to the next thread that has not ended, of the same warp or of any; if none is left, to `run_block`.
void switch_from(Fiber& from, bool same_warp) {
    const Fiber* to = nullptr;
    if (alive > 0) {
        const unsigned first = same_warp ? running / 32 * 32 : 0, count = same_warp ? 32 : threads;
        unsigned next = running;
        do next = first + (next - first + (reversed ? count - 1 : 1)) % count;
        while (fibers[next].done);
        if (next == running) return;
        to = &fibers[next];
        start(next);
    }
#ifdef WITH_ADDRESS_SANITIZER
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, to ? to->stack : home_stack, to ? STACK : home_size);
#endif
    swapcontext(&from.context, to ? &to->context : &home);
#ifdef WITH_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void yield_until_progress(bool same_warp) {
    if (++idle_turns > 2 * threads) fail("deadlock: the threads of a block wait for each other");
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
        if (!mine.copies.empty()) fail("a thread ended with incomplete asynchronous copies");
        if (at_barrier > 0) fail("a thread ended while others wait at a barrier");
        mine.done = true;
        --alive;
        idle_turns = 0;
        switch_from(mine, false);
    }
}

void make_fiber(Fiber& fiber) {
    void* stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) fail("out of memory for thread stacks");
    fiber.stack = static_cast<char*>(stack);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, fiber_main, 0);
    // With a size, the address sanitizer would clear its shadow of the stack at every switch, which is slow.
    fiber.context.uc_stack.ss_size = 0;
}

void run_block() {
    alive = threads;
    at_barrier = 0;
    idle_turns = 0;
    warps.assign(threads / 32, {});
    for (unsigned i = 0; i < threads; ++i) fibers[i].done = false;
    start(reversed ? threads - 1 : 0);
#ifdef WITH_ADDRESS_SANITIZER
    void* fake_stack;
    __sanitizer_start_switch_fiber(&fake_stack, fibers[running].stack, STACK);
#endif
    swapcontext(&home, &fibers[running].context);
#ifdef WITH_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    for (const auto& [key, array] : arrays) free(array.first);
    arrays.clear();
}

void run_grid(const unsigned (&grid)[3], unsigned block, const std::function<void()>& kernel) {
    threads = block;
    body = &kernel;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block, 1, 1};
    if (!fibers) fibers = std::make_unique<Fiber[]>(MAX_THREADS);
    for (unsigned i = 0; i < block; ++i) {
        if (fibers[i].stack == nullptr) make_fiber(fibers[i]);
    }
    unsigned blocks = 0;
    for (unsigned z = 0; z < grid[2]; ++z) {
        for (unsigned y = 0; y < grid[1]; ++y) {
            for (unsigned x = 0; x < grid[0]; ++x) {
                blockIdx = {x, y, z};
                reversed = blocks % 2 == 1;
                warp_first = blocks / 2 % 2 == 1;
                ++blocks;
                run_block();
            }
        }
    }
}

}  // namespace

void fail(const char* message) {
    fprintf(stderr, "%s\n", message);
    exit(1);
}

void* shared(const void* key, size_t bytes) {
    auto [entry, is_new] = arrays.try_emplace(key, nullptr, bytes);
    if (is_new) {
        entry->second.first = malloc(bytes);
        memset(entry->second.first, 0xff, bytes);
    }
    return entry->second.first;
}

void block_barrier() {
    if (alive < threads) fail("a thread has ended and cannot reach this barrier");
    const unsigned long mine = barriers_passed;
    idle_turns = 0;
    if (++at_barrier == threads) {
        at_barrier = 0;
        ++barriers_passed;
    }
    while (mine == barriers_passed) yield_until_progress(false);
}

const LaneValues* exchange(const char* instruction, const LaneValues& mine) {
    Warp& warp = warps[running / 32];
    const unsigned lane = running % 32;
    Warp::Round& round = warp.rounds[warp.arrivals[lane]++ % 2];
    if (round.arrived == 32) round.arrived = 0;
    if (round.arrived == 0) round.instruction = instruction;
    if (strcmp(round.instruction, instruction) != 0) fail("the lanes of a warp are at different warp instructions");
    round.values[lane] = mine;
    ++round.arrived;
    idle_turns = 0;
    while (round.arrived < 32) yield_until_progress(warp_first);
    return round.values;
}

void enqueue_copy(void* to, const void* from, size_t bytes) {
    memset(to, 0xff, bytes);
    fibers[running].copies.push_back({to, from, bytes});
}

void complete_copies() {
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
    // A separate allocation of the exact size, for the address sanitizer.
    std::unique_ptr<char[]> buffer;
    uint64_t bytes = 0;
    uint32_t bits = 0;
};

enum Kind : uint8_t { NONE = 0, BUFFER = 1, U32 = 2, F32 = 3 };

// Whether an argument has the C++ type T.
template <typename T>
bool matches(const Argument& argument) {
    if constexpr (std::is_pointer_v<T>) {
        return argument.kind == NONE ||
               (argument.kind == BUFFER && argument.bytes % sizeof(std::remove_pointer_t<T>) == 0);
    } else if constexpr (std::is_same_v<T, float>) {
        return argument.kind == F32;
    } else {
        static_assert(std::is_same_v<T, unsigned>);
        return argument.kind == U32;
    }
}

template <typename T>
T as(const Argument& argument) {
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(argument.buffer.get());
    } else {
        return std::bit_cast<T>(argument.bits);
    }
}

// Runs a kernel; returns false if the arguments do not match its signature.
using Launch =
    std::function<bool(const unsigned (&grid)[3], unsigned block, const std::vector<Argument>& arguments)>;

template <typename... T>
Launch launch(void (*kernel)(T...)) {
    return [kernel](const unsigned(&grid)[3], unsigned block, const std::vector<Argument>& arguments) {
        return [&]<size_t... I>(std::index_sequence<I...>) {
            if (arguments.size() != sizeof...(T) || !(matches<T>(arguments[I]) && ...)) return false;
            emulator::run_grid(grid, block, [&] { kernel(as<T>(arguments[I])...); });
            return true;
        }(std::index_sequence_for<T...>());
    };
}

#define KERNEL(name) {#name, launch(name)},
#define ALL_DTYPES(name) KERNEL(name##_f32) KERNEL(name##_f16) KERNEL(name##_bf16)
#define ALL_HEAD_DIMS(name) KERNEL(name##_32) KERNEL(name##_64) KERNEL(name##_96) KERNEL(name##_128)

// All kernels by name.
const std::map<std::string, Launch> KERNELS = {
    ALL_DTYPES(lookup)
    ALL_DTYPES(linear)
    ALL_DTYPES(norm)
    ALL_DTYPES(rotate)
    ALL_HEAD_DIMS(attention_f16)
    ALL_HEAD_DIMS(attention_bf16)
    ALL_DTYPES(pool)
};

void read_exactly(void* to, size_t bytes) {
    if (fread(to, 1, bytes, stdin) != bytes) emulator::fail("unexpected end of standard input");
}

template <typename T>
T read_value() {
    T value;
    read_exactly(&value, sizeof value);
    return value;
}

size_t read_count(const std::string& what) {
    const uint32_t count = read_value<uint32_t>();
    if (count > 255) emulator::fail((std::to_string(count) + " " + what + " exceed the maximum of 255").c_str());
    return count;
}

Argument read_argument() {
    Argument argument;
    argument.kind = read_value<uint8_t>();
    switch (argument.kind) {
        case NONE: break;
        case BUFFER:
            argument.bytes = read_value<uint64_t>();
            argument.buffer.reset(new (std::nothrow) char[argument.bytes]);
            if (!argument.buffer) emulator::fail("out of memory for a buffer");
            read_exactly(argument.buffer.get(), argument.bytes);
            break;
        case U32:
        case F32: argument.bits = read_value<uint32_t>(); break;
        default: emulator::fail("unknown argument tag");
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
        const unsigned block = read_value<uint32_t>();
        std::vector<Argument> arguments(read_count("arguments"));
        for (Argument& argument : arguments) argument = read_argument();

        const auto kernel = KERNELS.find(name);
        if (kernel == KERNELS.end()) emulator::fail(("unknown kernel " + name).c_str());
        if (block == 0 || block > emulator::MAX_THREADS || block % 32 != 0)
            emulator::fail("a block must have 32 to 1024 threads in whole warps");
        if (grid[1] > 65535 || grid[2] > 65535 || grid[0] > INT_MAX) emulator::fail("the grid is too large");
        if (!kernel->second(grid, block, arguments))
            emulator::fail(("the arguments do not match the signature of " + name).c_str());
        for (const Argument& argument : arguments) {
            if (argument.bytes > 0) fwrite(argument.buffer.get(), 1, argument.bytes, stdout);
        }
        fflush(stdout);
    }
}
