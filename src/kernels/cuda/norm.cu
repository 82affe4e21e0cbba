// LayerNorm and RMSNorm: out = norm(x + residual) · weight + bias. x, residual and out are (rows, width), weight and
// bias (width). Residual and bias may be null; out may be x or the residual. One block of 128 threads per row: grid
// (rows).

#include "norm.cuh"

template <typename D>
__device__ __forceinline__ void norm_rows(D* out, const D* x, const D* residual, const Norm<D>& norm, unsigned rows,
                                          unsigned width) {
    if (blockIdx.x >= rows) return;
    const size_t start = size_t(blockIdx.x) * width;
    norm_any(out, norm, width, aligned(x) && aligned(residual), [&](unsigned column, auto& values) {
        constexpr int STEP = sizeof(values) / sizeof(float);
        load<STEP>(x + start + column, values);
        if (residual == nullptr) return;
        float add[STEP];
        load<STEP>(residual + start + column, add);
        UNROLL
        for (int i = 0; i < STEP; ++i) values[i] += add[i];
    });
}

#define NORM(suffix, D)                                                                                               \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS)                                                        \
        norm_##suffix(D* out, const D* x, const D* residual, const D* weight, const D* bias, unsigned rows,           \
                      unsigned width, unsigned kind, float eps) {                                                     \
        norm_rows<D>(out, x, residual, {weight, bias, kind, eps}, rows, width);                                       \
    }
EACH_TYPE(NORM)
#undef NORM
