// Normalisation of a row, LayerNorm (Ba et al. 2016) or RMSNorm (Zhang & Sennrich 2019), wherever its numbers come from. The
// variance is taken in a second pass, so that a large mean costs no digits.
//
// One block of 128 threads a row: grid (rows). Rows of up to 4096 numbers stay in registers between the passes; longer
// ones, and those that are not whole vectors, are read anew, each number by the thread that will write it.

#pragma once

#include "common.cuh"


constexpr unsigned NORM_THREADS = 128;

// In the order of `enum NormKind` in src/kernels/norm.rs.
enum NormCode : unsigned {
    LAYER = 0,
    ROOT_MEAN_SQUARE = 1,
};

// The sum over the block, the same bits in every thread; `warps` is not written again before another barrier.
__device__ __forceinline__ float block_sum(float x, float* warps) {
    x = warp_sum(x);
    if (threadIdx.x % LANES == 0) warps[threadIdx.x / LANES] = x;
    __syncthreads();
    float sum = 0.0f;
    UNROLL
    for (unsigned i = 0; i < NORM_THREADS / LANES; ++i) sum += warps[i];
    return sum;
}

// What a row becomes: norm(row) · weight + bias, where bias may be null.
template <typename D>
struct Norm {
    const D* weight;
    const D* bias;
    unsigned kind;
    float eps;
};

// KEPT vectors of STEP numbers a thread stay in registers; 0: none does. `read` gives STEP numbers from a column of the row on.
template <int STEP, int KEPT, typename D, typename Read>
__device__ __forceinline__ void norm_row(D* out, const Norm<D>& norm, unsigned width, float* warps, Read read) {
    const size_t start = size_t(blockIdx.x) * width;
    float kept[KEPT > 0 ? KEPT : 1][STEP] = {};
    UNROLL
    for (int v = 0; v < KEPT; ++v) {
        unsigned column = (v * NORM_THREADS + threadIdx.x) * STEP;
        if (column < width) read(column, kept[v]);
    }
    // Calls f with the columns and the values of this thread, some at a time.
    auto each = [&](auto f) {
        if constexpr (KEPT > 0) {
            UNROLL
            for (int v = 0; v < KEPT; ++v) {
                unsigned column = (v * NORM_THREADS + threadIdx.x) * STEP;
                if (column < width) f(column, kept[v]);
            }
        } else {
            for (unsigned column = threadIdx.x * STEP; column < width; column += NORM_THREADS * STEP) {
                read(column, kept[0]);
                f(column, kept[0]);
            }
        }
    };

    float mean = 0.0f;
    if (norm.kind == LAYER) {
        float sum = 0.0f;
        each([&](unsigned, float (&values)[STEP]) {
            UNROLL
            for (int i = 0; i < STEP; ++i) sum += values[i];
        });
        mean = block_sum(sum, warps) / float(width);
    }
    float square = 0.0f;
    each([&](unsigned, float (&values)[STEP]) {
        UNROLL
        for (int i = 0; i < STEP; ++i) square += (values[i] - mean) * (values[i] - mean);
    });
    const float scale = 1.0f / sqrtf(block_sum(square, warps + NORM_THREADS / LANES) / float(width) + norm.eps);
    each([&](unsigned column, float (&values)[STEP]) {
        float by[STEP], result[STEP];
        load<STEP>(norm.weight + column, by);
        UNROLL
        for (int i = 0; i < STEP; ++i) result[i] = (values[i] - mean) * scale * by[i];
        if (norm.bias != nullptr) {
            float add[STEP];
            load<STEP>(norm.bias + column, add);
            UNROLL
            for (int i = 0; i < STEP; ++i) result[i] += add[i];
        }
        store<STEP>(out + start + column, result);
    });
}

// One row, by vectors where `read` can give them and nothing else stands against it.
template <typename D, typename Read>
__device__ __forceinline__ void norm_any(D* out, const Norm<D>& norm, unsigned width, bool vectors, Read read) {
    SHARED(float, warps, 2 * NORM_THREADS / LANES);
    constexpr int STEP = VECTOR<D>;
    if (!vectors || !aligned(out) || !aligned(norm.weight) || !aligned(norm.bias) || width % STEP != 0) {
        norm_row<1, 0>(out, norm, width, warps, read);
    } else if (width <= NORM_THREADS * 8) {
        norm_row<STEP, 8 / STEP>(out, norm, width, warps, read);
    } else if (width <= NORM_THREADS * 32) {
        norm_row<STEP, 32 / STEP>(out, norm, width, warps, read);
    } else {
        norm_row<STEP, 0>(out, norm, width, warps, read);
    }
}
