// LayerNorm (Ba et al. 2016), RMSNorm (Zhang & Sennrich 2019) and NoNorm (Sun et al. 2020) of a row that a functor
// reads. The variance is computed in a second pass, so that a large mean does not cancel its digits.
//
// One block of 128 threads per row: grid (rows). Rows of up to 4096 values stay in registers between the passes. Longer
// rows, and rows that are not whole vectors, are read again, each value by the thread that writes it.

#pragma once

#include "common.cuh"


constexpr unsigned NORM_THREADS = 128;

// The codes of `NormWeights::code` in src/ops/add_norm.rs.
enum NormCode : unsigned {
    LAYER = 0,
    ROOT_MEAN_SQUARE = 1,
    AFFINE = 2,
};

// The sum over the block, with the same bits in every thread. `warps` must not be written again before another barrier.
__device__ __forceinline__ float block_sum(float x, float* warps) {
    x = warp_sum(x);
    if (threadIdx.x % LANES == 0) warps[threadIdx.x / LANES] = x;
    __syncthreads();
    float sum = 0.0f;
    UNROLL
    for (unsigned i = 0; i < NORM_THREADS / LANES; ++i) sum += warps[i];
    return sum;
}

// The parameters of norm(row) · weight + bias; bias may be null.
template <typename D>
struct Norm {
    const D* weight;
    const D* bias;
    unsigned kind;
    float eps;
};

// Normalises a row. Each thread keeps KEPT vectors of STEP values in registers, or with 0 reads them again. `read`
// returns STEP values from a column on.
template <int STEP, int KEPT, typename D, typename Read>
__device__ __forceinline__ void norm_row(D* out, const Norm<D>& norm, unsigned width, float* warps, Read read) {
    const size_t start = size_t(blockIdx.x) * width;
    float kept[KEPT > 0 ? KEPT : 1][STEP] = {};
    UNROLL
    for (int v = 0; v < KEPT; ++v) {
        unsigned column = (v * NORM_THREADS + threadIdx.x) * STEP;
        if (column < width) read(column, kept[v]);
    }
    // Calls f(column, values) for every STEP values of this thread.
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
    float scale = 1.0f;
    if (norm.kind != AFFINE) {
        float square = 0.0f;
        each([&](unsigned, float (&values)[STEP]) {
            UNROLL
            for (int i = 0; i < STEP; ++i) square += (values[i] - mean) * (values[i] - mean);
        });
        scale = 1.0f / sqrtf(block_sum(square, warps + NORM_THREADS / LANES) / float(width) + norm.eps);
    }
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

// Normalises a row, in vectors if `read` supports them (`vectors`) and all pointers are aligned.
template <typename D, typename Read>
__device__ __forceinline__ void norm_any(D* out, const Norm<D>& norm, unsigned width, bool vectors, Read read) {
    SHARED(float, warps, 2 * NORM_THREADS / LANES);
    constexpr int STEP = VECTOR_LEN<D>;
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
