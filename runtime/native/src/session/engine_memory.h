// Memory that calls of an engine leave for later ones: hidden states, kept keys and values.
#ifndef EDGEKIT_SESSION_ENGINE_MEMORY_H
#define EDGEKIT_SESSION_ENGINE_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace edgekit {

// Goes back when it is destroyed.
class EngineBlock {
 public:
  virtual ~EngineBlock() = default;
  EngineBlock(const EngineBlock &) = delete;
  EngineBlock &operator=(const EngineBlock &) = delete;
  float *floats() const noexcept { return static_cast<float *>(data_); }

 protected:
  explicit EngineBlock(void *data) : data_(data) {}

 private:
  void *const data_;
};

// `blocks` blocks of `count` floats each, `to_stride` and `from_stride` floats apart. What is written overlaps nothing that
// the same copy reads.
struct FloatCopy {
  float *to = nullptr;
  const float *from = nullptr;
  std::int64_t count = 0;
  std::int64_t blocks = 1, to_stride = 0, from_stride = 0;
  bool from_session = false;  // `from` is the session's memory, whatever `to` is
  bool to_session = false;    // the same of `to`, which may be read behind finish(); one block then
};

// Must outlive its blocks. Addresses in it are for arithmetic; only where `session` holds may anybody else look there.
class EngineMemory {
 public:
  virtual ~EngineMemory() = default;

  // It is the session's own: what is not written to takes none from the system.
  virtual bool session() const = 0;

  // More than 0. Throws Error: EK_OUT_OF_MEMORY, EK_ENGINE_FAILED.
  virtual std::unique_ptr<EngineBlock> allocate(std::int64_t floats) = 0;

  // One after the other, in the order of the engine's calls, behind which they may be under way. Throws Error
  // (EK_ENGINE_FAILED).
  virtual void copy(const std::vector<FloatCopy> &copies) = 0;

  // Waits until nothing is under way. Throws Error (EK_ENGINE_FAILED) where something failed.
  virtual void finish() = 0;
};

// The memory of engines without one of their own.
EngineMemory &session_memory();

// Floats that are allocated when they are first needed, and again when more are. Contents are lost then.
class FloatBuffer {
 public:
  // Always with the same memory, which must outlive the buffer.
  float *floats(std::int64_t count, EngineMemory &memory = session_memory());
  float *data() const noexcept { return block_ ? block_->floats() : nullptr; }

 private:
  std::unique_ptr<EngineBlock> block_;
  std::int64_t count_ = 0;
};

// Has `write` fill `count` floats of the session's memory, which then lie at `to`; `staged` is where they are written first
// if `to` is memory of an engine's own.
template <typename Write>
void write_floats(EngineMemory &memory, float *to, std::int64_t count, FloatBuffer &staged, Write &&write) {
  if (memory.session()) return write(to);
  FloatCopy copy;
  copy.to = to;
  copy.count = count;
  copy.from_session = true;
  float *from = staged.floats(count);
  write(from);
  copy.from = from;
  memory.copy({copy});
}

}  // namespace edgekit

#endif  // EDGEKIT_SESSION_ENGINE_MEMORY_H
