// Embeddings: a row is the sum of rows of up to four tables (Devlin et al. 2019, figure 2).
//
// out is (rows, width), a table (any, width), and i_k[r] the row of table k for row r. Pairs from the first null table
// on are not there. One block of 128 threads a row: grid (rows).

#include "common.cuh"

constexpr unsigned LOOKUP_THREADS = 128;

template <typename D>
struct LookupPair {
    const D* table;
    const unsigned* rows;
};

template <int STEP, typename D>
__device__ __forceinline__ void lookup_row(D* out, const LookupPair<D> (&pairs)[4], unsigned width) {
    const size_t row = blockIdx.x;
    const D* from[4];
    UNROLL
    for (int k = 0; k < 4; ++k) {
        bool there = pairs[k].table != nullptr && (k == 0 || from[k - 1] != nullptr);
        from[k] = there ? pairs[k].table + size_t(pairs[k].rows[row]) * width : nullptr;
    }
    for (unsigned column = threadIdx.x * STEP; column < width; column += LOOKUP_THREADS * STEP) {
        float sum[STEP] = {};
        UNROLL
        for (int k = 0; k < 4; ++k) {
            if (from[k] == nullptr) break;
            float add[STEP];
            load<STEP>(from[k] + column, add);
            UNROLL
            for (int i = 0; i < STEP; ++i) sum[i] += add[i];
        }
        store<STEP>(out + row * width + column, sum);
    }
}

template <typename D>
__device__ __forceinline__ void lookup(D* out, const LookupPair<D> (&pairs)[4], unsigned rows, unsigned width) {
    if (blockIdx.x >= rows) return;
    bool vectors = width % VECTOR<D> == 0 && aligned(out);
    UNROLL
    for (int k = 0; k < 4; ++k) vectors = vectors && aligned(pairs[k].table);
    if (vectors) {
        lookup_row<VECTOR<D>>(out, pairs, width);
    } else {
        lookup_row<1>(out, pairs, width);
    }
}

#define LOOKUP(suffix, D)                                                                                             \
    extern "C" __global__ void __launch_bounds__(LOOKUP_THREADS) lookup_##suffix(                                     \
        D* out, const D* t0, const unsigned* i0, const D* t1, const unsigned* i1, const D* t2, const unsigned* i2,    \
        const D* t3, const unsigned* i3, unsigned rows, unsigned width) {                                             \
        const LookupPair<D> pairs[4] = {{t0, i0}, {t1, i1}, {t2, i2}, {t3, i3}};                                      \
        lookup<D>(out, pairs, rows, width);                                                                           \
    }
EACH_TYPE(LOOKUP)
#undef LOOKUP
