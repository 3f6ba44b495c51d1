// Blocks of accumulators as nested structs instead of arrays: gcc 12 keeps an array of vectors in memory even when
// every index is a constant. Everything is local to the file that includes this.
#ifndef EDGEKIT_KERNELS_GEMM_REGISTERS_H
#define EDGEKIT_KERNELS_GEMM_REGISTERS_H

#include <cstdint>

#include "kernels/gemm_kernels.h"
#include "kernels/vector_math.h"

namespace edgekit {
namespace {

// N registers; `Vector` is a struct with a type V (vector types as template arguments would lose their attributes).
template <typename Vector, int N>
struct Registers {
  typename Vector::V first;
  Registers<Vector, N - 1> rest;
};
template <typename Vector>
struct Registers<Vector, 0> {};

// f(i, register i) for all of them.
template <int I = 0, typename Vector, int N, typename F>
EK_VECTOR_INLINE void each(Registers<Vector, N> &registers, const F &f) {
  if constexpr (N > 0) {
    f(I, registers.first);
    each<I + 1>(registers.rest, f);
  } else {
    (void)registers;
    (void)f;
  }
}

// f(i, a i, b i) for all of them.
template <int I = 0, typename Vector, typename Other, int N, typename F>
EK_VECTOR_INLINE void each_pair(Registers<Vector, N> &a, Registers<Other, N> &b, const F &f) {
  if constexpr (N > 0) {
    f(I, a.first, b.first);
    each_pair<I + 1>(a.rest, b.rest, f);
  } else {
    (void)a;
    (void)b;
    (void)f;
  }
}

// f(a i, b i, c i) for all of them.
template <typename A, typename B, typename C, int N, typename F>
EK_VECTOR_INLINE void each_three(Registers<A, N> &a, Registers<B, N> &b, Registers<C, N> &c, const F &f) {
  if constexpr (N > 0) {
    f(a.first, b.first, c.first);
    each_three(a.rest, b.rest, c.rest, f);
  } else {
    (void)a;
    (void)b;
    (void)c;
    (void)f;
  }
}

// Rows of N registers.
template <typename Vector, int Rows, int N>
struct Tile {
  Registers<Vector, N> first;
  Tile<Vector, Rows - 1, N> rest;
};
template <typename Vector, int N>
struct Tile<Vector, 0, N> {};

// f(row, registers of the row) for all rows.
template <int Row = 0, typename Vector, int Rows, int N, typename F>
EK_VECTOR_INLINE void each_row(Tile<Vector, Rows, N> &tile, const F &f) {
  if constexpr (Rows > 0) {
    f(Row, tile.first);
    each_row<Row + 1>(tile.rest, f);
  } else {
    (void)tile;
    (void)f;
  }
}

// f(row, registers of a's row, registers of b's row) for all rows.
template <int Row = 0, typename Vector, typename Other, int Rows, int N, int M, typename F>
EK_VECTOR_INLINE void each_row_pair(Tile<Vector, Rows, N> &a, Tile<Other, Rows, M> &b, const F &f) {
  if constexpr (Rows > 0) {
    f(Row, a.first, b.first);
    each_row_pair<Row + 1>(a.rest, b.rest, f);
  } else {
    (void)a;
    (void)b;
    (void)f;
  }
}

// Calls the tile of the right height: F<rows>::run(arguments...).
template <template <int> class F, int Most, typename... Arguments>
EK_VECTOR_INLINE void with_rows(std::int64_t rows, Arguments... arguments) {
  if constexpr (Most > 1) {
    if (rows < Most) {
      with_rows<F, Most - 1>(rows, arguments...);
      return;
    }
  }
  F<Most>::run(arguments...);
}

template <typename L>
struct FloatVector {
  using V = typename L::Float;
};

// See GemmKernels::float_tile; `Vectors` registers of outputs at a time.
template <typename L, int Rows, int Vectors>
EK_VECTOR_INLINE void float_tile_rows(const float *x, std::int64_t stride, const float *panel, std::int64_t depth,
                                      float *sums, bool accumulate) {
  using V = FloatVector<L>;
  for (int column = 0; column < kPanelRows; column += Vectors * L::kWidth) {
    Tile<V, Rows, Vectors> tile;
    each_row(tile, [&](int, auto &row) { each(row, [&](int, auto &sum) { sum = L::set(0.0f); }); });
    const float *from = panel + column;
    for (std::int64_t k = 0; k < depth; ++k) {
      Registers<V, Vectors> weights;
      each(weights, [&](int i, auto &w) { w = L::load(from + i * L::kWidth); });
      each_row(tile, [&](int r, auto &row) {
        const typename L::Float a = L::set(x[r * stride + k]);
        each_pair(row, weights, [&](int, auto &sum, auto &w) { sum = L::add(sum, L::mul(a, w)); });
      });
      from += kPanelRows;
    }
    each_row(tile, [&](int r, auto &row) {
      each(row, [&](int i, auto &sum) {
        float *to = sums + r * kPanelRows + column + i * L::kWidth;
        L::store(to, accumulate ? L::add(L::load(to), sum) : sum);
      });
    });
  }
}

template <typename L, int Vectors>
struct FloatTile {
  template <int Rows>
  struct Of {
    static void run(const float *x, std::int64_t stride, const float *panel, std::int64_t depth, float *sums,
                    bool accumulate) {
      float_tile_rows<L, Rows, Vectors>(x, stride, panel, depth, sums, accumulate);
    }
  };
};

// GemmKernels::float_tile for up to `Most` rows.
template <typename L, int Most, int Vectors>
void float_tile(const float *x, std::int64_t stride, std::int64_t rows, const float *panel, std::int64_t depth,
                float *sums, bool accumulate) {
  with_rows<FloatTile<L, Vectors>::template Of, Most>(rows, x, stride, panel, depth, sums, accumulate);
}

}  // namespace
}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_GEMM_REGISTERS_H
