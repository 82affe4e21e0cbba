// The sum of embeddings of up to four tables (Devlin et al. 2019, figure 2), followed by a norm if `weight` is not
// null.
//
// out is (rows, width), each table (any, width), and i_k[r] the index into table k for row r. Tables from the first
// null one on are absent. weight and bias are (width); either may be null. One block of 128 threads per row: grid
// (rows).

#include "norm.cuh"

template <typename D>
struct LookupPair {
    const D* table;
    const unsigned* rows;
};

template <typename D>
__device__ __forceinline__ void lookup(D* out, const LookupPair<D> (&pairs)[4], const Norm<D>& norm, unsigned rows,
                                       unsigned width) {
    const size_t row = blockIdx.x;
    if (row >= rows) return;
    const D* from[4];
    bool vectors = width % VECTOR_LEN<D> == 0 && aligned(out);
    UNROLL
    for (int k = 0; k < 4; ++k) {
        bool present = pairs[k].table != nullptr && (k == 0 || from[k - 1] != nullptr);
        from[k] = present ? pairs[k].table + size_t(pairs[k].rows[row]) * width : nullptr;
        vectors = vectors && aligned(pairs[k].table);
    }
    auto read = [&](unsigned column, auto& values) {
        constexpr int STEP = sizeof(values) / sizeof(float);
        UNROLL
        for (int i = 0; i < STEP; ++i) values[i] = 0.0f;
        UNROLL
        for (int k = 0; k < 4; ++k) {
            if (from[k] == nullptr) break;
            float add[STEP];
            load<STEP>(from[k] + column, add);
            UNROLL
            for (int i = 0; i < STEP; ++i) values[i] += add[i];
        }
    };
    // Copies the row without a norm.
    auto copy = [&](auto& values) {
        constexpr int STEP = sizeof(values) / sizeof(float);
        for (unsigned column = threadIdx.x * STEP; column < width; column += NORM_THREADS * STEP) {
            read(column, values);
            store<STEP>(out + row * width + column, values);
        }
    };
    float one[1], several[VECTOR_LEN<D>];
    if (norm.weight != nullptr) {
        norm_any(out, norm, width, vectors, read);
    } else if (vectors) {
        copy(several);
    } else {
        copy(one);
    }
}

#define LOOKUP(suffix, D)                                                                                             \
    extern "C" __global__ void __launch_bounds__(NORM_THREADS) lookup_##suffix(                                       \
        D* out, const D* t0, const unsigned* i0, const D* t1, const unsigned* i1, const D* t2, const unsigned* i2,    \
        const D* t3, const unsigned* i3, const D* weight, const D* bias, unsigned rows, unsigned width,               \
        unsigned kind, float eps) {                                                                                   \
        const LookupPair<D> pairs[4] = {{t0, i0}, {t1, i1}, {t2, i2}, {t3, i3}};                                      \
        lookup<D>(out, pairs, {weight, bias, kind, eps}, rows, width);                                                \
    }
EACH_TYPE(LOOKUP)
#undef LOOKUP
