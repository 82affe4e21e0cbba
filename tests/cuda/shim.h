// CUDA on a CPU: what the kernels of src/kernels/cuda use of the language, with the threads of a block as fibers that
// take turns where they wait for each other. Slow, single-threaded and always in the same order; meant for tests.
//
// What it is stricter about than a GPU: shared memory is full of NaN before each block, an asynchronous copy arrives no
// sooner than its wait (and leaves NaN until then), all threads of a block have to come to a barrier and all lanes of a
// warp to the same instruction of the warp, and what has to be aligned is looked at. Arrays in shared memory are
// allocations of their own, so that the address sanitizer sees what goes past an end.

#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <array>
#include <bit>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define UNROLL
#define SHARED(type, name, count)                                              \
    static const char name##_is_here = 0;                                      \
    type* const name = static_cast<type*>(emulator::shared(&name##_is_here, sizeof(type) * (count)))

struct Place {
    unsigned x, y, z;
};

// Of the thread that runs at the moment.
inline Place threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) [[gnu::may_alias]] uint4 {
    unsigned x, y, z, w;
};
typedef unsigned __attribute__((may_alias)) Word;

// What emulator.cpp has to offer.
namespace emulator {

// What a lane shows the others of its warp.
using Shown = std::array<uint32_t, 8>;

// An array in shared memory of the running block, made by the first thread that asks.
void* shared(const void* key, size_t bytes);
void block_barrier();
// Waits for all lanes of the warp to show something for the same instruction; all that was shown, until the next one.
const Shown* exchange(const char* instruction, const Shown& mine);
void copy_later(void* to, const void* from, size_t bytes);
void copies_arrive();
[[noreturn]] void fail(const char* sentence);

inline unsigned lane() { return threadIdx.x % 32; }

}  // namespace emulator

// Numbers of two bytes.

struct __half {
    uint16_t bits;
};

struct __nv_bfloat16 {
    uint16_t bits;
};

inline float __half2float(__half x) {
    const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
    // Below the smallest normal number, units of 2⁻²⁴.
    if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(fraction) * 0x1p-24f));
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

inline __half __float2half_rn(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0x7fffffff;
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    if (rest > 0x7f800000) return {0x7fff};
    // From half a step above the largest number on, infinity.
    if (rest >= 0x477ff000) return {uint16_t(sign | 0x7c00)};
    // Below the smallest normal number, the addition rounds to units of 2⁻²⁴.
    if (rest < 0x38800000) {
        const float shifted = std::bit_cast<float>(rest) + 0.5f;
        return {uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000))};
    }
    return {uint16_t(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13))};
}

inline float __bfloat162float(__nv_bfloat16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
    return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

inline __half narrow_to(float x, __half) { return __float2half_rn(x); }
inline __nv_bfloat16 narrow_to(float x, __nv_bfloat16) { return __float2bfloat16_rn(x); }
inline float wide_of(__half x) { return __half2float(x); }
inline float wide_of(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename D>
void narrow_pair(float low, float high, D type, Word& to) {
    to = narrow_to(low, type).bits | uint32_t(narrow_to(high, type).bits) << 16;
}

inline float exp2_fast(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

// Waiting and exchange.

inline void __syncthreads() { emulator::block_barrier(); }

inline void __syncwarp() { emulator::exchange("__syncwarp", {}); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T x, unsigned apart) {
    static_assert(sizeof(T) == 4);
    if (mask != 0xffffffff) emulator::fail("__shfl_xor_sync of a part of a warp");
    const emulator::Shown* all = emulator::exchange("__shfl_xor_sync", {std::bit_cast<uint32_t>(x)});
    return std::bit_cast<T>(all[(emulator::lane() ^ apart) % 32][0]);
}

inline void copy_16(void* to, const void* from, bool read) {
    if (reinterpret_cast<size_t>(to) % 16 != 0 || (read && reinterpret_cast<size_t>(from) % 16 != 0))
        emulator::fail("cp.async of 16 bytes that are not on a boundary of 16");
    emulator::copy_later(to, read ? from : nullptr, 16);
}

inline void copies_wait() { emulator::copies_arrive(); }

// ldmatrix: word `i` of lane `l` is columns 2 (l % 4) and the next of row l / 4 of matrix i, or of its transpose; lane
// 8 i + r points at row r of matrix i. The pointers are shown as two words.
inline void load_matrices_of(Word (&to)[4], const void* row, bool transposed) {
    if (reinterpret_cast<size_t>(row) % 16 != 0) emulator::fail("ldmatrix of a row that is not on a boundary of 16");
    const auto place = reinterpret_cast<uint64_t>(row);
    const emulator::Shown* all =
        emulator::exchange(transposed ? "ldmatrix.trans" : "ldmatrix", {uint32_t(place), uint32_t(place >> 32)});
    const unsigned lane = emulator::lane();
    for (unsigned i = 0; i < 4; ++i) {
        uint16_t numbers[2];
        for (unsigned j = 0; j < 2; ++j) {
            unsigned r = lane / 4, c = 2 * (lane % 4) + j;
            if (transposed) {
                const unsigned swap = r;
                r = c;
                c = swap;
            }
            const auto& from = all[8 * i + r];
            const auto* start = reinterpret_cast<const char*>(uint64_t(from[0]) | uint64_t(from[1]) << 32);
            memcpy(&numbers[j], start + 2 * c, 2);
        }
        to[i] = numbers[0] | uint32_t(numbers[1]) << 16;
    }
}

inline void load_matrices(Word (&to)[4], const void* row) { load_matrices_of(to, row, false); }
inline void load_matrices_transposed(Word (&to)[4], const void* row) { load_matrices_of(to, row, true); }

// mma.m16n8k16, by the fragment layouts of the PTX manual. With g = lane / 4 and t = lane % 4, of the 16-bit numbers i:
//   a[0..8]: row g (+ 8 where i / 2 is odd), column 2 t + i % 2 (+ 8 where i ≥ 4)
//   b[0..4]: row 2 t + i % 2 (+ 8 where i ≥ 2), column g
//   c[0..4]: row g (+ 8 where i ≥ 2), column 2 t + i % 2
// Products and sums are in f32, in the order of k; a GPU adds some of them at once, and rounds otherwise.
template <typename D>
void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1, D) {
    const emulator::Shown* all = emulator::exchange("mma", {a[0], a[1], a[2], a[3], b0, b1});
    const unsigned g = emulator::lane() / 4, t = emulator::lane() % 4;
    // The two rows of a and the two columns of b that meet in what this lane has of c.
    float rows[2][16], columns[2][16];
    for (unsigned k = 0; k < 16; ++k) {
        // The lane within four, and which of its numbers, that have column k of a, or row k of b.
        const unsigned four = k % 8 / 2, odd = k % 2, far = k / 8;
        auto number = [&](unsigned lane, unsigned word) {
            return wide_of(D{uint16_t(all[lane + four][word] >> (16 * odd))});
        };
        for (unsigned i = 0; i < 2; ++i) {
            rows[i][k] = number(4 * g, 2 * far + i);
            columns[i][k] = number(4 * (2 * t + i), 4 + far);
        }
    }
    for (unsigned i = 0; i < 4; ++i) {
        for (unsigned k = 0; k < 16; ++k) c[i] += rows[i / 2][k] * columns[i % 2][k];
    }
}
