// Rotary positions (Su et al. 2021, equation 34), in place: the first 2 · pairs columns of every head turn, in pairs,
// by the angles of the row's place; as src/ops/rotary.rs.
//
// x is (rows, heads · size), cos and sin are (L, pairs) of f32, places (rows), each below L. `neighbours`: columns
// 2 i and 2 i + 1 make a pair, not i and i + pairs. One block of 128 threads a row: grid (rows).

#include "common.cuh"

constexpr unsigned ROTARY_THREADS = 128;

// STEP pairs at a time.
template <int STEP, typename D>
__device__ __forceinline__ void rotate_row(D* row, const float* cos, const float* sin, unsigned heads, unsigned size,
                                           unsigned pairs, bool neighbours) {
    const unsigned parts = pairs / STEP;
    for (unsigned part = threadIdx.x; part < heads * parts; part += ROTARY_THREADS) {
        const unsigned first = part % parts * STEP;
        D* head = row + size_t(part / parts) * size;
        // Where the pairs stand: first halves in a and second ones in b, or in turns in a and then b.
        D* a = head + (neighbours ? 2 * first : first);
        D* b = neighbours ? a + STEP : a + pairs;
        float c[STEP], s[STEP], x[2][STEP], y[2][STEP];
        load<STEP>(cos + first, c);
        load<STEP>(sin + first, s);
        load<STEP>(a, x[0]);
        load<STEP>(b, x[1]);
        UNROLL
        for (int i = 0; i < STEP; ++i) {
            if (neighbours) {
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
__device__ __forceinline__ void rotate(D* x, const float* cos, const float* sin, const unsigned* places, unsigned rows,
                                       unsigned heads, unsigned size, unsigned pairs, bool neighbours) {
    const size_t row = blockIdx.x;
    if (row >= rows) return;
    x += row * heads * size;
    cos += size_t(places[row]) * pairs;
    sin += size_t(places[row]) * pairs;
    constexpr int STEP = VECTOR<D>;
    if (pairs % STEP == 0 && size % STEP == 0 && aligned(x) && aligned(cos) && aligned(sin)) {
        rotate_row<STEP>(x, cos, sin, heads, size, pairs, neighbours);
    } else {
        rotate_row<1>(x, cos, sin, heads, size, pairs, neighbours);
    }
}

#define ROTATE(suffix, D)                                                                                             \
    extern "C" __global__ void __launch_bounds__(ROTARY_THREADS)                                                      \
        rotate_##suffix(D* x, const float* cos, const float* sin, const unsigned* places, unsigned rows,              \
                        unsigned heads, unsigned size, unsigned pairs, unsigned neighbours) {                         \
        rotate<D>(x, cos, sin, places, rows, heads, size, pairs, neighbours != 0);                                    \
    }
EACH_TYPE(ROTATE)
#undef ROTATE
