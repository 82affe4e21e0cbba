// Shared by all kernels: conversions of three dtypes, vectors of 16 bytes, sums over a warp, and wrappers of PTX
// instructions.
//
// Tensors are row-major and contiguous. Counts are 32 bits wide; an index into a tensor is computed in 64 bits.
// Arithmetic is in f32; a store rounds to nearest, ties to even. A row's result depends only on the row (in attention
// and pooling: on the sequence), not on the rest of the batch.
//
// With SCONCE_EMULATED the files are C++ for a CPU, on top of tests/cuda/shim.h.

#pragma once

#ifdef SCONCE_EMULATED
#include "../../../tests/cuda/shim.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define UNROLL _Pragma("unroll")
// An array in shared memory, aligned to 16 bytes.
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]

// A packed element: two f16 or bf16 values.
typedef unsigned Packed;

// Rounds two values to a 16-bit dtype, which the third argument selects.
__device__ __forceinline__ void pack_pair(float low, float high, __half, Packed& to) {
    __half2 pair = __floats2half2_rn(low, high);
    memcpy(&to, &pair, 4);
}

__device__ __forceinline__ void pack_pair(float low, float high, __nv_bfloat16, Packed& to) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&to, &pair, 4);
}

// 2ˣ within 2 ULP; subnormal results are flushed to 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Copies 16 bytes from global to shared memory asynchronously (cp.async). If not `read`, writes zeros and does not
// access `from`. The bytes have arrived after `wait_for_copies`, and for other threads after a barrier.
__device__ __forceinline__ void copy_16_async(void* to, const void* from, bool read) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
    unsigned bytes = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Loads four matrices of 8 × 8 16-bit values from shared memory (ldmatrix): lane 8 m + r passes the address of row r of
// matrix m. Each lane gets columns 2 (lane % 4) and 2 (lane % 4) + 1 of row lane / 4 of each matrix.
__device__ __forceinline__ void load_matrices(Packed (&to)[4], const void* row) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// `load_matrices` with each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(Packed (&to)[4], const void* row) {
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// c += a b, where a is 16 × 16, b is 16 × 8 and c is 16 × 8 of f32, in the fragment layouts of "Matrix Fragments for
// mma.m16n8k16" in the PTX manual. The last argument only selects the dtype.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const Packed (&a)[4], Packed b0, Packed b1, __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const Packed (&a)[4], Packed b0, Packed b1, __nv_bfloat16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif

// Calls KERNEL(suffix of the kernel name, dtype) for every dtype.
#define EACH_TYPE(KERNEL) KERNEL(f32, float) KERNEL(f16, __half) KERNEL(bf16, __nv_bfloat16)

constexpr unsigned LANES = 32;
constexpr unsigned ALL_LANES = 0xffffffff;

// Values of dtype D in a vector of 16 bytes.
template <typename D>
constexpr int VECTOR_LEN = 16 / int(sizeof(D));

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

__device__ __forceinline__ void store_rounded(float x, float& to) { to = x; }
__device__ __forceinline__ void store_rounded(float x, __half& to) { to = __float2half_rn(x); }
__device__ __forceinline__ void store_rounded(float x, __nv_bfloat16& to) { to = __float2bfloat16_rn(x); }

// Whether vectors can be loaded from p: it is aligned to 16 bytes, or null.
__device__ __forceinline__ bool aligned(const void* p) { return reinterpret_cast<size_t>(p) % 16 == 0; }

// Loads N consecutive values: one, or whole vectors aligned to 16 bytes.
template <int N, typename D>
__device__ __forceinline__ void load(const D* from, float (&to)[N]) {
    if constexpr (N == 1) {
        to[0] = to_float(from[0]);
    } else {
        static_assert(N % VECTOR_LEN<D> == 0);
        UNROLL
        for (int i = 0; i < N; i += VECTOR_LEN<D>) {
            uint4 raw = *reinterpret_cast<const uint4*>(from + i);
            D values[VECTOR_LEN<D>];
            memcpy(values, &raw, 16);
            UNROLL
            for (int j = 0; j < VECTOR_LEN<D>; ++j) to[i + j] = to_float(values[j]);
        }
    }
}

// The reverse of `load`.
template <int N, typename D>
__device__ __forceinline__ void store(D* to, const float (&from)[N]) {
    if constexpr (N == 1) {
        store_rounded(from[0], to[0]);
    } else {
        static_assert(N % VECTOR_LEN<D> == 0);
        UNROLL
        for (int i = 0; i < N; i += VECTOR_LEN<D>) {
            D values[VECTOR_LEN<D>];
            UNROLL
            for (int j = 0; j < VECTOR_LEN<D>; ++j) store_rounded(from[i + j], values[j]);
            uint4 raw;
            memcpy(&raw, values, 16);
            *reinterpret_cast<uint4*>(to + i) = raw;
        }
    }
}

// The sum over the lanes of a warp, with the same bits in every lane.
__device__ __forceinline__ float warp_sum(float x) {
    UNROLL
    for (unsigned offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}
