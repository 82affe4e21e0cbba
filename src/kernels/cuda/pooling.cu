// Pooling: from the hidden states of a sequence to one vector of f32 (Reimers & Gurevych 2019, §3), as
// src/ops/pooling.rs computes it.
//
// hidden is (T, width). Sequence i has the rows cu_seqlens[i]..cu_seqlens[i + 1], of which the first `prompt_tokens`
// are not pooled. out is (sequences, width). Blocks of 128 threads, one column per thread: grid (sequences, ⌈width /
// 128⌉).

#include "common.cuh"

constexpr unsigned POOL_THREADS = 128;

// The codes of `Pool::launch` in src/ops/pooling.rs.
enum PoolCode : unsigned {
    POOL_CLS = 0,
    POOL_MAX = 1,
    POOL_MEAN = 2,
    POOL_MEAN_SQRT_LEN = 3,
    POOL_WEIGHTED_MEAN = 4,
    POOL_LAST = 5,
    POOL_POOLER = 6,
};

// Pools one column of a sequence of `rows` rows.
template <typename D>
__device__ __forceinline__ float pool_column(const D* column, unsigned width, unsigned rows, unsigned prompt_tokens,
                                             unsigned mode) {
    auto at = [&](unsigned row) { return to_float(column[size_t(row) * width]); };
    // A sequence of prompt tokens only, as sentence-transformers pools it.
    if (rows <= prompt_tokens) {
        if (mode == POOL_MAX) return -INFINITY;
        return (mode == POOL_CLS || mode == POOL_POOLER) && rows > 0 ? at(0) : 0.0f;
    }
    float sum = 0.0f;
    switch (mode) {
        case POOL_CLS: return at(prompt_tokens);
        case POOL_POOLER: return at(0);
        case POOL_LAST: return at(rows - 1);
        case POOL_MAX: {
            float max = at(prompt_tokens);
            for (unsigned row = prompt_tokens + 1; row < rows; ++row) {
                float x = at(row);
                // NaN propagates.
                max = x > max || x != x ? x : max;
            }
            return max;
        }
        case POOL_WEIGHTED_MEAN: {
            // Weights count from the start of the prompt.
            for (unsigned row = prompt_tokens; row < rows; ++row) sum += at(row) * float(row + 1);
            const unsigned long long n = rows, p = prompt_tokens;
            return sum / float((n * (n + 1) - p * (p + 1)) / 2);
        }
        default: {
            for (unsigned row = prompt_tokens; row < rows; ++row) sum += at(row);
            const float n = float(rows - prompt_tokens);
            return sum / (mode == POOL_MEAN_SQRT_LEN ? sqrtf(n) : n);
        }
    }
}

template <typename D>
__device__ __forceinline__ void pool(float* out, const D* hidden, const unsigned* cu_seqlens, unsigned width,
                                     unsigned prompt_tokens, unsigned mode) {
    const size_t sequence = blockIdx.x;
    const unsigned column = blockIdx.y * POOL_THREADS + threadIdx.x;
    if (column >= width) return;
    const unsigned start = cu_seqlens[sequence], rows = cu_seqlens[sequence + 1] - start;
    out[sequence * width + column] = pool_column(hidden + size_t(start) * width + column, width, rows, prompt_tokens, mode);
}

#define POOL(suffix, D)                                                                                                \
    extern "C" __global__ void __launch_bounds__(POOL_THREADS)                                                         \
        pool_##suffix(float* out, const D* hidden, const unsigned* cu_seqlens, unsigned width, unsigned prompt_tokens, \
                      unsigned mode) {                                                                                 \
        pool<D>(out, hidden, cu_seqlens, width, prompt_tokens, mode);                                                  \
    }
EACH_TYPE(POOL)
#undef POOL
