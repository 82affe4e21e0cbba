// Rotary position embeddings (Su et al. 2021, equation 34) in place: the first 2 · pairs columns of every head are
// rotated in pairs by the angles of the row's position, as src/ops/rotary.rs computes it.
//
// x is (rows, heads · head_dim), cos and sin are (L, pairs) of f32, position_ids is (rows), each below L. Pair i is
// columns 2 i and 2 i + 1 if `interleaved`, else i and i + pairs. One block of 128 threads per row: grid (rows).

#include "common.cuh"

constexpr unsigned ROTARY_THREADS = 128;

// Rotates a row, STEP pairs at a time.
template <int STEP, typename D>
__device__ __forceinline__ void rotate_row(D* row, const float* cos, const float* sin, unsigned heads, unsigned head_dim,
                                           unsigned pairs, bool interleaved) {
    const unsigned parts = pairs / STEP;
    for (unsigned part = threadIdx.x; part < heads * parts; part += ROTARY_THREADS) {
        const unsigned first = part % parts * STEP;
        D* head = row + size_t(part / parts) * head_dim;
        // Half-split: the first columns of the pairs are at a, the second at b. Interleaved: both alternate from a on,
        // and b follows a.
        D* a = head + (interleaved ? 2 * first : first);
        D* b = interleaved ? a + STEP : a + pairs;
        float c[STEP], s[STEP], x[2][STEP], y[2][STEP];
        load<STEP>(cos + first, c);
        load<STEP>(sin + first, s);
        load<STEP>(a, x[0]);
        load<STEP>(b, x[1]);
        UNROLL
        for (int i = 0; i < STEP; ++i) {
            if (interleaved) {
                constexpr int N = STEP;
                const float u = x[2 * i / N][2 * i % N], v = x[(2 * i + 1) / N][(2 * i + 1) % N];
                y[2 * i / N][2 * i % N] = u * c[i] - v * s[i];
                y[(2 * i + 1) / N][(2 * i + 1) % N] = v * c[i] + u * s[i];
            } else {
                y[0][i] = x[0][i] * c[i] - x[1][i] * s[i];
                y[1][i] = x[1][i] * c[i] + x[0][i] * s[i];
            }
        }
        store<STEP>(a, y[0]);
        store<STEP>(b, y[1]);
    }
}

template <typename D>
__device__ __forceinline__ void rotate(D* x, const float* cos, const float* sin, const unsigned* position_ids,
                                       unsigned rows, unsigned heads, unsigned head_dim, unsigned pairs,
                                       bool interleaved) {
    const size_t row = blockIdx.x;
    if (row >= rows) return;
    x += row * heads * head_dim;
    cos += size_t(position_ids[row]) * pairs;
    sin += size_t(position_ids[row]) * pairs;
    constexpr int STEP = VECTOR_LEN<D>;
    if (pairs % STEP == 0 && head_dim % STEP == 0 && aligned(x) && aligned(cos) && aligned(sin)) {
        rotate_row<STEP>(x, cos, sin, heads, head_dim, pairs, interleaved);
    } else {
        rotate_row<1>(x, cos, sin, heads, head_dim, pairs, interleaved);
    }
}

#define ROTATE(suffix, D)                                                                                             \
    extern "C" __global__ void __launch_bounds__(ROTARY_THREADS)                                                      \
        rotate_##suffix(D* x, const float* cos, const float* sin, const unsigned* position_ids, unsigned rows,        \
                        unsigned heads, unsigned head_dim, unsigned pairs, unsigned interleaved) {                    \
        rotate<D>(x, cos, sin, position_ids, rows, heads, head_dim, pairs, interleaved != 0);                         \
    }
EACH_TYPE(ROTATE)
#undef ROTATE
