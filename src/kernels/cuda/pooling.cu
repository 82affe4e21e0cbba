// From the hidden states of a text to one vector of f32 (Reimers & Gurevych 2019, §3); as src/ops/pooling.rs, from
// where the treatment of a prompt is.
//
// hidden is (T, width); text i has the rows offsets[i]..offsets[i + 1], and its first `prompt` rows are left out.
// out is (texts, width). Blocks of 128 threads, a column a thread:
// grid (texts, ⌈width / 128⌉).

#include "common.cuh"

constexpr unsigned POOL_THREADS = 128;

// In the order of `enum Pool` in src/ops/pooling.rs.
enum PoolCode : unsigned {
    POOL_CLS = 0,
    POOL_MAX = 1,
    POOL_MEAN = 2,
    POOL_MEAN_SQRT_LEN = 3,
    POOL_WEIGHTED_MEAN = 4,
    POOL_LAST = 5,
    POOL_POOLER = 6,
};

// One column of one text of so many rows.
template <typename D>
__device__ __forceinline__ float pool_column(const D* column, unsigned width, unsigned rows, unsigned prompt,
                                             unsigned mode) {
    auto at = [&](unsigned row) { return wide(column[size_t(row) * width]); };
    // What sentence-transformers makes of a text that is all prompt.
    if (rows <= prompt) {
        if (mode == POOL_MAX) return -INFINITY;
        return (mode == POOL_CLS || mode == POOL_POOLER) && rows > 0 ? at(0) : 0.0f;
    }
    float sum = 0.0f;
    switch (mode) {
        case POOL_CLS: return at(prompt);
        case POOL_POOLER: return at(0);
        case POOL_LAST: return at(rows - 1);
        case POOL_MAX: {
            float top = at(prompt);
            for (unsigned row = prompt + 1; row < rows; ++row) {
                float x = at(row);
                // NaN stays NaN.
                top = x > top || x != x ? x : top;
            }
            return top;
        }
        case POOL_WEIGHTED_MEAN: {
            // Rows keep the weights that they have with the prompt before them.
            for (unsigned row = prompt; row < rows; ++row) sum += at(row) * float(row + 1);
            const unsigned long long n = rows, p = prompt;
            return sum / float((n * (n + 1) - p * (p + 1)) / 2);
        }
        default: {
            for (unsigned row = prompt; row < rows; ++row) sum += at(row);
            const float n = float(rows - prompt);
            return sum / (mode == POOL_MEAN_SQRT_LEN ? sqrtf(n) : n);
        }
    }
}

template <typename D>
__device__ __forceinline__ void pool(float* out, const D* hidden, const unsigned* offsets, unsigned width,
                                     unsigned prompt, unsigned mode) {
    const size_t text = blockIdx.x;
    const unsigned column = blockIdx.y * POOL_THREADS + threadIdx.x;
    if (column >= width) return;
    const unsigned start = offsets[text], rows = offsets[text + 1] - start;
    out[text * width + column] = pool_column(hidden + size_t(start) * width + column, width, rows, prompt, mode);
}

#define POOL(suffix, D)                                                                                               \
    extern "C" __global__ void __launch_bounds__(POOL_THREADS)                                                        \
        pool_##suffix(float* out, const D* hidden, const unsigned* offsets, unsigned width, unsigned prompt,          \
                      unsigned mode) {                                                                                \
        pool<D>(out, hidden, offsets, width, prompt, mode);                                                           \
    }
EACH_TYPE(POOL)
#undef POOL
