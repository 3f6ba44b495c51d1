#include "session/engine_memory.h"

#include <cstring>
#include <utility>

#include "flash_file.h"

namespace edgekit {
namespace {

class SessionBlock final : public EngineBlock {
 public:
  explicit SessionBlock(AlignedMemory memory) : EngineBlock(memory.data()), memory_(std::move(memory)) {}

 private:
  const AlignedMemory memory_;
};

class SessionMemory final : public EngineMemory {
 public:
  bool session() const override { return true; }

  std::unique_ptr<EngineBlock> allocate(std::int64_t floats) override {
    return std::make_unique<SessionBlock>(AlignedMemory(sizeof(float) * static_cast<std::size_t>(floats)));
  }

  void copy(const std::vector<FloatCopy> &copies) override {
    for (const FloatCopy &each : copies) {
      for (std::int64_t i = 0; i < each.blocks; ++i) {
        std::memcpy(each.to + i * each.to_stride, each.from + i * each.from_stride,
                    sizeof(float) * static_cast<std::size_t>(each.count));
      }
    }
  }

  void finish() override {}
};

}  // namespace

EngineMemory &session_memory() {
  static SessionMemory memory;
  return memory;
}

float *FloatBuffer::floats(std::int64_t count, EngineMemory &memory) {
  if (count > count_) {
    count_ = 0;
    block_.reset();  // not both at a time
    block_ = memory.allocate(count);
    count_ = count;
  }
  return data();
}

}  // namespace edgekit
