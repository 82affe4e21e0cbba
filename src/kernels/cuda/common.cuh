// What the kernels share: numbers of three types, vectors of 16 bytes, sums over a warp, and the few instructions that
// C++ has no name for, each in a function of its own.
//
// Tensors are row-major and contiguous, counts are 32 bits wide, and an index into a tensor is computed in 64 bits.
// Arithmetic is in f32; a store rounds to the nearest number, ties to even. A row's result depends on nothing but the
// row (in attention and pooling: the text), so it is the same whatever else is in the batch.
//
// With SCONCE_EMULATED the files are C++ for a CPU, over tests/cuda/shim.h.

#pragma once

#ifdef SCONCE_EMULATED
#include "../../../tests/cuda/shim.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define UNROLL _Pragma("unroll")
// An array in shared memory, on a boundary of 16 bytes.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]

// Four bytes, whatever they stand for.
typedef unsigned Word;

__device__ __forceinline__ void narrow_pair(float low, float high, __half, Word& to) {
    __half2 pair = __floats2half2_rn(low, high);
    memcpy(&to, &pair, 4);
}

__device__ __forceinline__ void narrow_pair(float low, float high, __nv_bfloat16, Word& to) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&to, &pair, 4);
}

// 2 to the power of x, within 2 ulp; 0 where the result is below the smallest normal number.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 16 bytes from global to shared memory, past the registers, or 16 bytes of zeros, and then `from` is not read. They
// are there after `copies_wait`, for the other threads after a barrier besides.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool read) {
    unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(to));
    unsigned bytes = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four matrices of 8 × 8 numbers of two bytes out of shared memory: lane 8 m + r says where row r of matrix m stands,
// and gets columns 2 (lane % 4) and the next of row lane / 4 of each.
__device__ __forceinline__ void load_matrices(Word (&to)[4], const void* row) {
    unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(place)
                 : "memory");
}

// The same, with each matrix transposed on the way.
__device__ __forceinline__ void load_matrices_transposed(Word (&to)[4], const void* row) {
    unsigned place = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(place)
                 : "memory");
}

// c += a b, where a is 16 × 16, b is 16 × 8 and c is 16 × 8 of f32, spread over a warp as the PTX manual has it under
// "Matrix Fragments for mma.m16n8k16". The last argument only says the type.
__device__ __forceinline__ void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1, __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1, __nv_bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif

// A line a type: the suffix of a kernel's name, and what its numbers are.
#define EACH_TYPE(KERNEL) KERNEL(f32, float) KERNEL(f16, __half) KERNEL(bf16, __nv_bfloat16)

constexpr unsigned LANES = 32;
constexpr unsigned ALL_LANES = 0xffffffff;

// Numbers in 16 bytes.
template <typename D>
constexpr int VECTOR = 16 / int(sizeof(D));

__device__ __forceinline__ float wide(float x) { return x; }
__device__ __forceinline__ float wide(__half x) { return __half2float(x); }
__device__ __forceinline__ float wide(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void narrow(float x, float& to) { to = x; }
__device__ __forceinline__ void narrow(float x, __half& to) { to = __float2half_rn(x); }
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& to) { to = __float2bfloat16_rn(x); }

// Whether vectors can be loaded from there. Null is fine, for nothing is.
__device__ __forceinline__ bool aligned(const void* p) { return reinterpret_cast<size_t>(p) % 16 == 0; }

// N neighbouring numbers: one by itself, or whole vectors, which begin on a boundary of 16 bytes.
template <int N, typename D>
__device__ __forceinline__ void load(const D* from, float (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = wide(from[0]);
    } else {
        static_assert(N % VECTOR<D> == 0);
        UNROLL
        for (int i = 0; i < N; i += VECTOR<D>) {
            uint4 raw = *reinterpret_cast<const uint4*>(from + i);
            D numbers[VECTOR<D>];
            memcpy(numbers, &raw, 16);
            UNROLL
            for (int j = 0; j < VECTOR<D>; ++j) to[i + j] = wide(numbers[j]);
        }
    }
}

template <int N, typename D>
__device__ __forceinline__ void store(D* to, const float (&from)[N]) {
    if constexpr (N == 1) {
        narrow(from[0], to[0]);
    } else {
        static_assert(N % VECTOR<D> == 0);
        UNROLL
        for (int i = 0; i < N; i += VECTOR<D>) {
            D numbers[VECTOR<D>];
            UNROLL
            for (int j = 0; j < VECTOR<D>; ++j) narrow(from[i + j], numbers[j]);
            uint4 raw;
            memcpy(&raw, numbers, 16);
            *reinterpret_cast<uint4*>(to + i) = raw;
        }
    }
}

// The sum over the lanes of a warp, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float x) {
    UNROLL
    for (unsigned apart = LANES / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(ALL_LANES, x, apart);
    return x;
}
