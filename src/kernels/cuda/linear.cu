// The epilogue of a linear layer: y = f(y) + residual in place, for y of (rows, width). The GEMM has added the bias.
// The formulas are those of src/kernels/activation.rs, which cites their sources.
//
// Blocks of 256 threads, 8 consecutive values per thread: grid (⌈rows · width / 2048⌉).

#include "common.cuh"

constexpr unsigned LINEAR_THREADS = 256;
constexpr int LINEAR_VALUES = 8;

// The codes of `Activation::code` in src/ops/activation.rs.
enum ActivationCode : unsigned {
    IDENTITY = 0,
    GELU = 1,  // the exact form with the error function
    GELU_TANH = 2,
    GELU_CLIPPED = 3,
    QUICK_GELU = 4,
    RELU = 5,
    RELU_SQUARED = 6,
    RELU_6 = 7,
    LEAKY_RELU = 8,
    SILU = 9,
    HARD_SWISH = 10,
    MISH = 11,
    LAPLACE = 12,
    SQRT_SOFTPLUS = 13,
    SIGMOID = 14,
    TANH = 15,
    PRELU = 16,  // p0: slope
    XIELU = 17,  // p0..p3: positive, negative, beta, eps
};

// NaN propagates in all of them, so there is no fminf and no fmaxf, which drop it.

__device__ __forceinline__ float clamp_max(float x, float max) { return max < x ? max : x; }
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// x σ(y)
__device__ __forceinline__ float times_sigmoid(float x, float y) { return x / (1.0f + expf(-y)); }

__device__ __forceinline__ float gelu(float x) {
    float half = 0.5f * x;
    return half * erff(x * 0.70710678f) + half;
}

// tanh(u) = 2 σ(2 u) − 1
__device__ __forceinline__ float gelu_tanh(float x) {
    return times_sigmoid(x, 1.59576912f * (0.044715f * (x * x * x) + x));  // 2 √(2 / π)
}

__device__ __forceinline__ float gelu_clipped(float x) {
    float y = clamp_max(gelu(x), 10.0f);
    return y < -10.0f ? -10.0f : y;
}

// tanh(ln(1 + e)) = (e² + 2 e) / (e² + 2 e + 2) with e = eˣ. The ratio is 1 for x > 20, where e² could overflow.
__device__ __forceinline__ float mish(float x) {
    float e = expf(clamp_max(x, 20.0f));
    float n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
}

// The mean √½ and the standard deviation 1 / √(4 π) with the rounding of `transformers`.
__device__ __forceinline__ float laplace(float x) {
    return 0.5f * erff((x - 0.707107f) / 0.282095f * 0.70710678f) + 0.5f;
}

// ln(1 + eˣ) without overflow
__device__ __forceinline__ float softplus(float x) { return relu(x) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float xielu(float x, float positive, float negative, float beta, float eps) {
    if (x > 0.0f) return positive * x * x + beta * x;
    return (expm1f(clamp_max(x, eps)) - x) * negative + beta * x;
}

template <typename F>
__device__ __forceinline__ void apply(float (&x)[LINEAR_VALUES], F f) {
    UNROLL
    for (int i = 0; i < LINEAR_VALUES; ++i) x[i] = f(x[i]);
}

__device__ __forceinline__ void activate(float (&y)[LINEAR_VALUES], unsigned code, float p0, float p1, float p2,
                                         float p3) {
    switch (code) {
        case IDENTITY: return;
        case GELU: return apply(y, [](float x) { return gelu(x); });
        case GELU_TANH: return apply(y, [](float x) { return gelu_tanh(x); });
        case GELU_CLIPPED: return apply(y, [](float x) { return gelu_clipped(x); });
        case QUICK_GELU: return apply(y, [](float x) { return times_sigmoid(x, 1.702f * x); });
        case RELU: return apply(y, [](float x) { return relu(x); });
        case RELU_SQUARED: return apply(y, [](float x) { return relu(x) * relu(x); });
        case RELU_6: return apply(y, [](float x) { return clamp_max(relu(x), 6.0f); });
        case LEAKY_RELU: return apply(y, [](float x) { return x < 0.0f ? 0.01f * x : x; });
        case SILU: return apply(y, [](float x) { return times_sigmoid(x, x); });
        case HARD_SWISH: return apply(y, [](float x) { return x * clamp_max(relu(x + 3.0f), 6.0f) / 6.0f; });
        case MISH: return apply(y, [](float x) { return mish(x); });
        case LAPLACE: return apply(y, [](float x) { return laplace(x); });
        case SQRT_SOFTPLUS: return apply(y, [](float x) { return sqrtf(softplus(x)); });
        case SIGMOID: return apply(y, [](float x) { return times_sigmoid(1.0f, x); });
        case TANH: return apply(y, [](float x) { return tanhf(x); });
        case PRELU: return apply(y, [=](float x) { return x < 0.0f ? p0 * x : x; });
        case XIELU: return apply(y, [=](float x) { return xielu(x, p0, p1, p2, p3); });
    }
}

template <typename D>
__device__ __forceinline__ void linear(D* y, const D* residual, unsigned rows, unsigned width, unsigned code, float p0,
                                       float p1, float p2, float p3) {
    const size_t count = size_t(rows) * width;
    const size_t start = (size_t(blockIdx.x) * LINEAR_THREADS + threadIdx.x) * LINEAR_VALUES;
    if (start >= count) return;
    const bool vectors = count - start >= LINEAR_VALUES && aligned(y) && aligned(residual);
    const int here = count - start < LINEAR_VALUES ? int(count - start) : LINEAR_VALUES;
    float values[LINEAR_VALUES] = {}, add[LINEAR_VALUES] = {};
    if (vectors) {
        load<LINEAR_VALUES>(y + start, values);
        if (residual != nullptr) load<LINEAR_VALUES>(residual + start, add);
    } else {
        UNROLL
        for (int i = 0; i < LINEAR_VALUES; ++i) {
            if (i >= here) break;
            values[i] = to_float(y[start + i]);
            if (residual != nullptr) add[i] = to_float(residual[start + i]);
        }
    }
    activate(values, code, p0, p1, p2, p3);
    if (residual != nullptr) {
        UNROLL
        for (int i = 0; i < LINEAR_VALUES; ++i) values[i] += add[i];
    }
    if (vectors) {
        store<LINEAR_VALUES>(y + start, values);
    } else {
        UNROLL
        for (int i = 0; i < LINEAR_VALUES; ++i) {
            if (i >= here) break;
            store_rounded(values[i], y[start + i]);
        }
    }
}

#define LINEAR(suffix, D)                                                                                             \
    extern "C" __global__ void __launch_bounds__(LINEAR_THREADS)                                                      \
        linear_##suffix(D* y, const D* residual, unsigned rows, unsigned width, unsigned activation, float p0,        \
                        float p1, float p2, float p3) {                                                               \
        linear<D>(y, residual, rows, width, activation, p0, p1, p2, p3);                                              \
    }
EACH_TYPE(LINEAR)
#undef LINEAR
