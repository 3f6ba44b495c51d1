#include "executor/mixture.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "error.h"
#include "executor/pieces.h"
#include "kernels/float_ops.h"
#include "kernels/gemm.h"

namespace edgekit {
namespace {

// Rows of one expert that are computed at once: more would only cost memory, the weights are in the cache by then.
constexpr std::int64_t kMostRows = 512;
// Experts of up to so many rows are computed by one thread each, side by side: sharing out such a small product
// among threads, and its even smaller steps in between, takes a notable part of its time.
constexpr std::int64_t kMostRowsAlone = 64;

// What the computation of one expert needs for up to `rows` rows at a time.
struct Bench {
  Bench(const MixtureShape &shape, std::int64_t rows, std::size_t gemm_bytes, Pieces &pieces) : most_rows(rows) {
    gated = pieces.take<float>(rows * 2 * shape.width);
    if (shape.rounded) {
      // gather() starts each of three arrays at a multiple of 64 bytes.
      rounded_x = pieces.take_bytes(quantized_bytes(rows, shape.hidden) + 3 * 64);
      rounded_gated = pieces.take_bytes(quantized_bytes(rows, shape.width));
    }
    if (shape.floating) x = pieces.take<float>(rows * shape.hidden);
    if (gemm_bytes != 0) gemm_scratch = pieces.take_bytes(gemm_bytes);
  }

  std::int64_t most_rows;
  float *gated = nullptr;
  void *rounded_x = nullptr;
  void *rounded_gated = nullptr;
  float *x = nullptr;
  void *gemm_scratch = nullptr;
};

// Entry i of the sorted list is one (row, chosen expert); those of expert e are start[e]..start[e + 1].
struct Memory {
  Memory(const MixtureShape &shape, std::int64_t rows, int threads, void *base) : pieces(base) {
    const std::int64_t entries = rows * shape.chosen;
    start = pieces.take<std::int64_t>(shape.experts + 1);
    row = pieces.take<std::int32_t>(entries);
    factor = pieces.take<float>(entries);
    of_row = pieces.take<std::int32_t>(entries);
    filled = pieces.take<std::int32_t>(rows);
    part = pieces.take<float>(entries * shape.hidden);
    benches.emplace_back(shape, std::min(rows, kMostRows), 0, pieces);
    for (int thread = 0; threads > 1 && thread < threads; ++thread) {
      benches.emplace_back(shape, std::min(rows, kMostRowsAlone), gemm_scratch_bytes(1), pieces);
    }
  }

  std::int64_t rows_of(std::int64_t expert) const { return start[expert + 1] - start[expert]; }

  Pieces pieces;
  std::int64_t *start = nullptr;
  std::int32_t *row = nullptr;     // of an entry
  float *factor = nullptr;         // weight of an entry
  std::int32_t *of_row = nullptr;  // entries of a row, [rows, chosen], ascending
  std::int32_t *filled = nullptr;  // how many of them are known
  float *part = nullptr;           // what the expert makes of an entry's row [entries, hidden]
  std::vector<Bench> benches;      // for all threads together, then one per thread
};

// Counting sort by expert; rows of an expert stay in order.
void sort_rows(const MixtureShape &shape, std::int64_t rows, const std::int64_t *index, const float *weight,
               Memory &memory) {
  const std::int64_t entries = rows * shape.chosen;
  std::fill_n(memory.start, shape.experts + 1, 0);
  for (std::int64_t i = 0; i < entries; ++i) {
    if (index[i] < 0 || index[i] >= shape.experts) {
      fail(EK_MALFORMED_FILE, "a layer routes a row to expert ", index[i], " of ", shape.experts,
           "; export the bundle again");
    }
    ++memory.start[index[i] + 1];
  }
  for (std::int64_t e = 0; e < shape.experts; ++e) memory.start[e + 1] += memory.start[e];
  // start[e] runs ahead while the entries of e are filled in; shifting it back afterwards restores it.
  for (std::int64_t i = 0; i < entries; ++i) {
    const std::int64_t entry = memory.start[index[i]]++;
    memory.row[entry] = static_cast<std::int32_t>(i / shape.chosen);
    memory.factor[entry] = weight[i];
  }
  std::copy_backward(memory.start, memory.start + shape.experts, memory.start + shape.experts + 1);
  memory.start[0] = 0;
  // Ascending entries are ascending experts.
  std::fill_n(memory.filled, rows, 0);
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    const std::int32_t row = memory.row[entry];
    memory.of_row[row * shape.chosen + memory.filled[row]++] = static_cast<std::int32_t>(entry);
  }
}

// Codes of an entry's row, gathered: rounding is per row, so this is what rounding the gathered rows would give.
QuantizedRows gather(const QuantizedRows &from, const std::int32_t *rows, std::int64_t count, void *memory) {
  Pieces pieces(memory);
  QuantizedRows out = from;
  out.rows = count;
  out.codes = pieces.take<std::int8_t>(count * from.stride);
  out.scales = pieces.take<float>(count);
  out.sums = pieces.take<std::int32_t>(count);
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(out.codes + i * out.stride, from.codes + rows[i] * from.stride, static_cast<std::size_t>(from.stride));
    out.scales[i] = from.scales[rows[i]];
    out.sums[i] = from.sums[rows[i]];
  }
  return out;
}

void gather(const float *x, std::int64_t width, const std::int32_t *rows, std::int64_t count, float *out) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * width, x + rows[i] * width, sizeof(float) * static_cast<std::size_t>(width));
  }
}

// activation(x @ gate.T) * (x @ up.T) into bench.gated; returns its row distance.
std::int64_t gate_up(ThreadPool &pool, const MixtureShape &shape, const Matrix &weights, const QuantizedRows *rounded,
                     std::int64_t count, const Bench &bench) {
  const std::int64_t width = shape.width;
  if (rounded != nullptr && width % kPanelRows == 0) {
    linear_gated(pool, matrix_rows(weights, 0, width), matrix_rows(weights, width, width), *rounded, shape.activation,
                 bench.gated, width, bench.gemm_scratch);
    return width;
  }
  // Halves that share a panel cannot be told apart before they are computed.
  if (rounded != nullptr) {
    linear(pool, weights, *rounded, bench.gated, 2 * width, {}, bench.gemm_scratch);
  } else {
    linear_float(pool, weights, bench.x, shape.hidden, count, bench.gated, 2 * width, {}, bench.gemm_scratch);
  }
  gated_act(pool, bench.gated, 2 * width, bench.gated + width, 2 * width, count, width, shape.activation, bench.gated,
            2 * width);
  return 2 * width;
}

// The rows of a mixture, and what is made of them.
struct Work {
  const MixtureShape &shape;
  const float *x;
  const QuantizedRows *quantized;
  Memory memory;
};

// One expert on its rows.
void run_expert(ThreadPool &pool, const Work &work, const LoadedExpert &expert, const Bench &bench) {
  const MixtureShape &shape = work.shape;
  const Memory &memory = work.memory;
  const Matrix &in = expert.weights.matrix(0), &out = expert.weights.matrix(1);
  const std::int64_t stop = memory.start[expert.index + 1];
  for (std::int64_t first = memory.start[expert.index]; first < stop; first += bench.most_rows) {
    const std::int64_t count = std::min(bench.most_rows, stop - first);
    std::int64_t stride = 0;
    if (in.bits < 16) {
      const QuantizedRows rounded = gather(*work.quantized, memory.row + first, count, bench.rounded_x);
      stride = gate_up(pool, shape, in, &rounded, count, bench);
    } else {
      gather(work.x, shape.hidden, memory.row + first, count, bench.x);
      stride = gate_up(pool, shape, in, nullptr, count, bench);
    }
    float *part = memory.part + first * shape.hidden;
    if (out.bits < 16) {
      const QuantizedRows gated = quantize_rows(pool, bench.gated, stride, count, shape.width, bench.rounded_gated);
      linear(pool, out, gated, part, shape.hidden, {}, bench.gemm_scratch);
    } else {
      linear_float(pool, out, bench.gated, stride, count, part, shape.hidden, {}, bench.gemm_scratch);
    }
  }
}

// Results are the same whichever way an expert is computed: products do not depend on the number of threads.
void run_batch(ThreadPool &pool, const Work &work, const std::vector<LoadedExpert> &batch) {
  std::vector<const LoadedExpert *> alone;
  for (const LoadedExpert &expert : batch) {
    const std::int64_t rows = work.memory.rows_of(expert.index);
    if (rows > 0 && rows <= kMostRowsAlone) alone.push_back(&expert);
  }
  const bool side_by_side = pool.size() > 1 && alone.size() >= static_cast<std::size_t>(pool.size());
  for (const LoadedExpert &expert : batch) {
    const std::int64_t rows = work.memory.rows_of(expert.index);
    if (rows > kMostRowsAlone || !side_by_side) run_expert(pool, work, expert, work.memory.benches[0]);
  }
  if (!side_by_side) return;
  pool.run(static_cast<std::int64_t>(alone.size()), [&](std::int64_t task, int thread) {
    ThreadPool one(1);  // no thread but this one
    run_expert(one, work, *alone[static_cast<std::size_t>(task)],
               work.memory.benches[1 + static_cast<std::size_t>(thread)]);
  });
}

// Weighted sums over the entries of a row.
void add_up(ThreadPool &pool, const MixtureShape &shape, std::int64_t rows, const Memory &memory, float *y) {
  pool.run(rows, [&](std::int64_t row, int) {
    const std::int32_t *entries = memory.of_row + row * shape.chosen;
    float *sum = y + row * shape.hidden;
    for (std::int64_t j = 0; j < shape.chosen; ++j) {
      const float *part = memory.part + entries[j] * shape.hidden;
      const float factor = memory.factor[entries[j]];
      if (j == 0) {
        for (std::int64_t i = 0; i < shape.hidden; ++i) sum[i] = part[i] * factor;
      } else {
        for (std::int64_t i = 0; i < shape.hidden; ++i) sum[i] += part[i] * factor;
      }
    }
  });
}

// Sorts rows by expert, has `run` compute all of them and count their rows, and adds up.
template <typename Run>
void mix(ThreadPool &pool, Work &work, std::int64_t rows, const std::int64_t *index, const float *weight, float *y,
         Run &&run) {
  sort_rows(work.shape, rows, index, weight, work.memory);
  std::vector<std::int64_t> of_experts;
  for (std::int64_t e = 0; e < work.shape.experts; ++e) of_experts.push_back(work.memory.rows_of(e));
  std::int64_t done = 0;
  run(of_experts, done);
  if (done != rows * work.shape.chosen) fail(EK_INTERNAL, "experts with rows were left out; please report it");
  add_up(pool, work.shape, rows, work.memory, y);
}

}  // namespace

std::size_t mixture_bytes(const MixtureShape &shape, std::int64_t rows, int threads) {
  return Memory(shape, rows, threads, nullptr).pieces.used();
}

void mixture(ThreadPool &pool, const MixtureShape &shape, std::int64_t rows, const float *x,
             const QuantizedRows *quantized, const std::int64_t *index, const float *weight, const ForEachExpert &each,
             float *y, void *memory, void *gemm_scratch) {
  Work work{shape, x, quantized, Memory(shape, rows, pool.size(), memory)};
  work.memory.benches[0].gemm_scratch = gemm_scratch;
  mix(pool, work, rows, index, weight, y, [&](const std::vector<std::int64_t> &of_experts, std::int64_t &done) {
    each(of_experts, [&](const std::vector<LoadedExpert> &batch) {
      run_batch(pool, work, batch);
      for (const LoadedExpert &expert : batch) done += work.memory.rows_of(expert.index);
    });
  });
}

void mixture_of(ThreadPool &pool, const MixtureShape &shape, std::int64_t rows, const float *x, const std::int64_t *index,
                const float *weight, const EachNumber &each, const ComputeExpert &compute, float *y, void *memory) {
  Work work{shape, x, nullptr, Memory(shape, rows, pool.size(), memory)};
  const Bench &bench = work.memory.benches[0];
  mix(pool, work, rows, index, weight, y, [&](const std::vector<std::int64_t> &of_experts, std::int64_t &done) {
    each(of_experts, [&](std::size_t number) {
      const std::int64_t expert = static_cast<std::int64_t>(number), stop = work.memory.start[expert + 1];
      for (std::int64_t first = work.memory.start[expert]; first < stop; first += bench.most_rows) {
        const std::int64_t count = std::min(bench.most_rows, stop - first);
        gather(x, shape.hidden, work.memory.row + first, count, bench.x);
        compute(number, bench.x, count, work.memory.part + first * shape.hidden);
      }
      done += work.memory.rows_of(expert);
    });
  });
}

}  // namespace edgekit
