// The subset of CUDA that the kernels of src/kernels/cuda use, on a CPU. The threads of a block are fibers that switch
// where they wait for each other: slow, single-threaded and deterministic, for tests.
//
// It is stricter than a GPU: shared memory is NaN before each block; an asynchronous copy arrives only when it is
// waited for, and is NaN until then; all threads of a block must reach a barrier, and all lanes of a warp the same warp
// instruction; alignment is checked. Each array in shared memory is a separate allocation, so that the address
// sanitizer detects accesses past its end.

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
    static const char name##_key = 0;                                      \
    type* const name = static_cast<type*>(emulator::shared(&name##_key, sizeof(type) * (count)))

struct Index3 {
    unsigned x, y, z;
};

// Of the thread that is running.
inline Index3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) [[gnu::may_alias]] uint4 {
    unsigned x, y, z, w;
};
typedef unsigned __attribute__((may_alias)) Packed;

// Implemented in emulator.cpp.
namespace emulator {

// The values that a lane passes to the other lanes of its warp.
using LaneValues = std::array<uint32_t, 8>;

// An array in shared memory of the running block; the first thread that asks creates it.
void* shared(const void* key, size_t bytes);
void block_barrier();
// Waits until all lanes of the warp have passed values to the same instruction, and returns those of all lanes. They
// are valid until the next call.
const LaneValues* exchange(const char* instruction, const LaneValues& mine);
void enqueue_copy(void* to, const void* from, size_t bytes);
void complete_copies();
[[noreturn]] void fail(const char* message);

inline unsigned lane() { return threadIdx.x % 32; }

}  // namespace emulator

// 16-bit floating point.

struct __half {
    uint16_t bits;
};

struct __nv_bfloat16 {
    uint16_t bits;
};

inline float __half2float(__half x) {
    const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
    // Subnormal: units of 2⁻²⁴.
    if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(float(fraction) * 0x1p-24f));
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

inline __half __float2half_rn(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x), rest = bits & 0x7fffffff;
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    if (rest > 0x7f800000) return {0x7fff};
    // From half a unit above the largest finite value on: infinity.
    if (rest >= 0x477ff000) return {uint16_t(sign | 0x7c00)};
    // Subnormal: adding 0.5 rounds to units of 2⁻²⁴.
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

inline __half round_to(float x, __half) { return __float2half_rn(x); }
inline __nv_bfloat16 round_to(float x, __nv_bfloat16) { return __float2bfloat16_rn(x); }
inline float widen(__half x) { return __half2float(x); }
inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename D>
void pack_pair(float low, float high, D type, Packed& to) {
    to = round_to(low, type).bits | uint32_t(round_to(high, type).bits) << 16;
}

inline float exp2_fast(float x) {
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

// Barriers and warp instructions.

inline void __syncthreads() { emulator::block_barrier(); }

inline void __syncwarp() { emulator::exchange("__syncwarp", {}); }

template <typename T>
T __shfl_xor_sync(unsigned mask, T x, unsigned lane_mask) {
    static_assert(sizeof(T) == 4);
    if (mask != 0xffffffff) emulator::fail("__shfl_xor_sync of only a part of a warp is not emulated");
    const emulator::LaneValues* all = emulator::exchange("__shfl_xor_sync", {std::bit_cast<uint32_t>(x)});
    return std::bit_cast<T>(all[(emulator::lane() ^ lane_mask) % 32][0]);
}

inline void copy_16_async(void* to, const void* from, bool read) {
    if (reinterpret_cast<size_t>(to) % 16 != 0 || (read && reinterpret_cast<size_t>(from) % 16 != 0))
        emulator::fail("cp.async of 16 bytes is not aligned to 16 bytes");
    emulator::enqueue_copy(to, read ? from : nullptr, 16);
}

inline void wait_for_copies() { emulator::complete_copies(); }

// ldmatrix: packed element i of lane l is columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix i, or of its
// transpose. Lane 8 i + r passes the address of row r of matrix i, as two u32.
inline void load_matrices_of(Packed (&to)[4], const void* row, bool transposed) {
    if (reinterpret_cast<size_t>(row) % 16 != 0) emulator::fail("ldmatrix of a row that is not aligned to 16 bytes");
    const auto address = reinterpret_cast<uint64_t>(row);
    const emulator::LaneValues* all =
        emulator::exchange(transposed ? "ldmatrix.trans" : "ldmatrix", {uint32_t(address), uint32_t(address >> 32)});
    const unsigned lane = emulator::lane();
    for (unsigned i = 0; i < 4; ++i) {
        uint16_t values[2];
        for (unsigned j = 0; j < 2; ++j) {
            unsigned r = lane / 4, c = 2 * (lane % 4) + j;
            if (transposed) {
                const unsigned swap = r;
                r = c;
                c = swap;
            }
            const auto& from = all[8 * i + r];
            const auto* start = reinterpret_cast<const char*>(uint64_t(from[0]) | uint64_t(from[1]) << 32);
            memcpy(&values[j], start + 2 * c, 2);
        }
        to[i] = values[0] | uint32_t(values[1]) << 16;
    }
}

inline void load_matrices(Packed (&to)[4], const void* row) { load_matrices_of(to, row, false); }
inline void load_matrices_transposed(Packed (&to)[4], const void* row) { load_matrices_of(to, row, true); }

// mma.m16n8k16, with the fragment layouts of the PTX manual. With g = lane / 4 and t = lane % 4, the 16-bit values i
// are:
//   a[0..8]: row g (+ 8 where i / 2 is odd), column 2 t + i % 2 (+ 8 where i ≥ 4)
//   b[0..4]: row 2 t + i % 2 (+ 8 where i ≥ 2), column g
//   c[0..4]: row g (+ 8 where i ≥ 2), column 2 t + i % 2
// Products are accumulated in f32 in the order of k; a GPU adds several at once and rounds differently.
template <typename D>
void mma_m16n8k16(float (&c)[4], const Packed (&a)[4], Packed b0, Packed b1, D) {
    const emulator::LaneValues* all = emulator::exchange("mma", {a[0], a[1], a[2], a[3], b0, b1});
    const unsigned g = emulator::lane() / 4, t = emulator::lane() % 4;
    // The two rows of a and the two columns of b whose products this lane accumulates in c.
    float rows[2][16], columns[2][16];
    for (unsigned k = 0; k < 16; ++k) {
        // The lane of a group of four, and which of its values, that hold column k of a and row k of b.
        const unsigned four = k % 8 / 2, odd = k % 2, far = k / 8;
        auto value = [&](unsigned lane, unsigned element) {
            return widen(D{uint16_t(all[lane + four][element] >> (16 * odd))});
        };
        for (unsigned i = 0; i < 2; ++i) {
            rows[i][k] = value(4 * g, 2 * far + i);
            columns[i][k] = value(4 * (2 * t + i), 4 + far);
        }
    }
    for (unsigned i = 0; i < 4; ++i) {
        for (unsigned k = 0; k < 16; ++k) c[i] += rows[i / 2][k] * columns[i % 2][k];
    }
}
