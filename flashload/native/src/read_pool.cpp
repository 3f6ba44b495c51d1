#include "read_pool.h"

#include <new>

#include "read_queue.h"

namespace edgekit {
namespace {

class ReadPool final : public ReadQueue {
 public:
  ReadPool(BlockFile &file, int threads) : file_(file), threads_(threads, [this](ReadRequest &part) { serve(part); }) {}

  void push(std::vector<ReadRequest> requests) override { threads_.push(std::move(requests)); }

 private:
  void serve(ReadRequest &part) {
    ReadOwner &owner = *part.owner;
    ReadOwner::Left left;
    try {
      if (owner.begin()) file_.read(part.out, part.size, part.offset, false);
      left = owner.ended(nullptr);
    } catch (const Error &error) {
      left = owner.ended(&error);
    } catch (const std::bad_alloc &) {
      const Error error(EK_OUT_OF_MEMORY, file_.path() + ": no memory is left to read it");
      left = owner.ended(&error);
    }
    // Hashing holds up this thread alone; the others go on reading.
    if (left != ReadOwner::Left::parts) owner.finish();
  }

  BlockFile &file_;
  JobThreads<ReadRequest> threads_;
};

}  // namespace

std::unique_ptr<ReadQueue> make_read_pool(BlockFile &file, int threads) {
  return std::make_unique<ReadPool>(file, threads);
}

}  // namespace edgekit
