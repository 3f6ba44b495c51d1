#include "kernels/attention.h"

#include "kernels/float_kernels.h"

namespace edgekit {
namespace {

// Queries of one task and keys at a time. A block of keys and values is packed once for all queries of the task and
// should stay in a second-level cache with the scores, next to the queries and sums that pass by: 400 KiB for heads of
// 128, 750 KiB for 512. Both depend on nothing but the head dimension, as sums are formed block by block.
std::int64_t row_block(std::int64_t head_dim) { return head_dim <= 128 ? 256 : 128; }
std::int64_t key_block(std::int64_t head_dim) { return head_dim <= 256 ? 96 : 48; }

// Distance between rows of packed keys and values beyond their length. A power of two alone would put a column of
// all rows in the same few places of the first-level cache.
constexpr std::int64_t kRowGap = 16;

// Cuts `memory` into the parts of a task's scratch memory; returns how many floats they take.
std::int64_t place(std::int64_t head_dim, float *memory, AttentionScratch &out) {
  const std::int64_t rows = row_block(head_dim), keys = key_block(head_dim), padded = round_up(head_dim, 16);
  out.key_stride = keys + kRowGap;
  out.value_stride = padded + kRowGap;
  std::int64_t used = 0;
  const auto take = [&](float *&part, std::int64_t count) {
    if (memory != nullptr) part = memory + used;
    used += count;
  };
  take(out.q, rows * head_dim);
  take(out.y, rows * padded);
  take(out.keys, head_dim * out.key_stride);
  take(out.values, keys * out.value_stride);
  take(out.scores, keys * kMostLanes);
  take(out.mask, keys * kMostLanes);
  take(out.largest, rows);
  take(out.sums, rows);
  take(out.factor, kMostLanes);
  return used;
}

}  // namespace

Strided rows_of(const Strided &all, std::int64_t first, std::int64_t count) {
  Strided out = all;
  out.data += first * all.stride[2];
  out.shape[2] = count;
  return out;
}

KeyPiece keys_at(float *data, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t capacity, std::int64_t start,
                 std::int64_t count) {
  KeyPiece out;
  const std::int64_t head = capacity * head_dim;
  data += start * head_dim;
  for (Strided *side : {&out.keys, &out.values}) {
    *side = {data, {1, kv_heads, count, head_dim}, {kv_heads * head, head, head_dim, 1}};
    data += kv_heads * head;
  }
  return out;
}

std::size_t attention_scratch_bytes(int threads, std::int64_t head_dim) {
  AttentionScratch scratch{};
  return static_cast<std::size_t>(threads) * static_cast<std::size_t>(place(head_dim, nullptr, scratch)) *
         sizeof(float);
}

void attention(ThreadPool &pool, const Strided &q, const std::vector<KeyPiece> &pieces, const float *mask, float scale,
               const Strided &y, void *scratch) {
  const FloatKernels &kernels = float_kernels();
  const std::int64_t kv_heads = pieces.back().keys.shape[1], group = q.shape[1] / kv_heads, positions = q.shape[2];
  const std::int64_t head_dim = q.shape[3], total = positions * group;
  if (total == 0) return;
  std::vector<AttentionKeys> keys;
  std::int64_t key_count = 0;
  for (const KeyPiece &piece : pieces) {
    if (piece.keys.shape[2] == 0) continue;
    keys.push_back({piece.keys.data, piece.values.data, piece.keys.shape[2], piece.keys.stride[1], piece.values.stride[1],
                    piece.keys.stride[2], piece.values.stride[2]});
    key_count += piece.keys.shape[2];
  }
  AttentionScratch parts{};
  const std::int64_t scratch_floats = place(head_dim, nullptr, parts);
  // Blocks of about equal size, in whole panels.
  const std::int64_t most = row_block(head_dim), count = (total + most - 1) / most;
  const std::int64_t rows = round_up((total + count - 1) / count, kMostLanes);
  const std::int64_t blocks = (total + rows - 1) / rows;

  pool.run(kv_heads * blocks, [&](std::int64_t index, int thread) {
    const std::int64_t head = index / blocks;
    AttentionTask task;
    task.first = index % blocks * rows;
    task.rows = total - task.first < rows ? total - task.first : rows;
    task.group = group;
    task.head_dim = head_dim;
    task.key_block = key_block(head_dim);
    task.q = q.data + head * group * q.stride[1];
    task.q_head = q.stride[1];
    task.q_row = q.stride[2];
    task.pieces = keys.data();
    task.piece_count = static_cast<std::int64_t>(keys.size());
    task.keys = key_count;
    task.kv_head = head;
    task.mask = mask;
    task.scale = scale;
    task.y = y.data + head * group * y.stride[1];
    task.y_head = y.stride[1];
    task.y_row = y.stride[2];
    place(head_dim, static_cast<float *>(scratch) + thread * scratch_floats, task.scratch);
    kernels.attention(task);
  });
}

}  // namespace edgekit
