// Normalisation of rows: out = norm(x + residual) · weight + bias, LayerNorm (Ba et al. 2016) or RMSNorm (Zhang &
// Sennrich 2019). x, residual and out are (rows, width), weight and bias (width). Residual and bias may be null; out
// may be x or the residual. The variance is taken in a second pass, so that a large mean costs no digits.
//
// One block of 128 threads a row: grid (rows). Rows of up to 4096 numbers stay in registers between the passes; longer
// ones, and those that are not whole vectors, are read anew, each number by the thread that will write it.

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

// KEPT vectors of STEP numbers a thread stay in registers; 0: none does.
template <int STEP, int KEPT, typename D>
__device__ __forceinline__ void norm_row(D* out, const D* x, const D* residual, const D* weight, const D* bias,
                                         unsigned width, unsigned kind, float eps, float* warps) {
    const size_t start = size_t(blockIdx.x) * width;
    auto read = [&](unsigned column, float (&values)[STEP]) {
        load<STEP>(x + start + column, values);
        if (residual == nullptr) return;
        float add[STEP];
        load<STEP>(residual + start + column, add);
        UNROLL
        for (int i = 0; i < STEP; ++i) values[i] += add[i];
    };
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
    if (kind == LAYER) {
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
    const float scale = 1.0f / sqrtf(block_sum(square, warps + NORM_THREADS / LANES) / float(width) + eps);
    each([&](unsigned column, float (&values)[STEP]) {
        float by[STEP], result[STEP];
        load<STEP>(weight + column, by);
        UNROLL
        for (int i = 0; i < STEP; ++i) result[i] = (values[i] - mean) * scale * by[i];
        if (bias != nullptr) {
            float add[STEP];
            load<STEP>(bias + column, add);
            UNROLL
            for (int i = 0; i < STEP; ++i) result[i] += add[i];
        }
        store<STEP>(out + start + column, result);
    });
}

template <typename D>
__device__ __forceinline__ void norm(D* out, const D* x, const D* residual, const D* weight, const D* bias,
                                     unsigned rows, unsigned width, unsigned kind, float eps) {
    SHARED(float, warps, 2 * NORM_THREADS / LANES);
    if (blockIdx.x >= rows) return;
    constexpr int STEP = VECTOR<D>;
    const bool vectors = width % STEP == 0 && aligned(out) && aligned(x) && aligned(residual) && aligned(weight) &&
                         aligned(bias);
    if (!vectors) {
        norm_row<1, 0>(out, x, residual, weight, bias, width, kind, eps, warps);
    } else if (width <= NORM_THREADS * 8) {
        norm_row<STEP, 8 / STEP>(out, x, residual, weight, bias, width, kind, eps, warps);
    } else if (width <= NORM_THREADS * 32) {
        norm_row<STEP, 32 / STEP>(out, x, residual, weight, bias, width, kind, eps, warps);
    } else {
        norm_row<STEP, 0>(out, x, residual, weight, bias, width, kind, eps, warps);
    }
}

#define NORM(suffix, D)                                                                                               \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                                        \
        norm_##suffix(D* out, const D* x, const D* residual, const D* weight, const D* bias, unsigned rows,           \
                      unsigned width, unsigned kind, float eps) {                                                     \
        norm<D>(out, x, residual, weight, bias, rows, width, kind, eps);                                              \
    }
EACH_TYPE(NORM)
#undef NORM
