// The best tokens of every row while tiles come and go.
#ifndef EDGEKIT_KERNELS_HEAD_CANDIDATES_H
#define EDGEKIT_KERNELS_HEAD_CANDIDATES_H

#include <cstdint>
#include <vector>

namespace edgekit {

// Keeps the k largest z of each row; of equals, the lower tokens. A NaN ranks below everything.
class HeadCandidates {
 public:
  HeadCandidates(std::int64_t rows, std::int64_t k);

  // Tokens first..first+count of a row, later than all before. Different rows may be joined by several threads.
  void add(std::int64_t row, std::int64_t first, const float *z, std::int64_t count);

  // ids, z [rows, k], descending.
  void result(std::int64_t *ids, float *z);

  static std::size_t bytes(std::int64_t rows, std::int64_t k);

 private:
  struct Candidate {
    std::int64_t id;
    float z;
    std::int32_t rank;  // orders as z does
  };
  static bool better(const Candidate &a, const Candidate &b);
  static std::int32_t rank_of(float z);

  std::int64_t rows_, k_;
  std::vector<Candidate> heap_;      // [rows, k], each row a heap with the worst in front
  std::vector<std::int64_t> count_;  // of candidates in each row
};

}  // namespace edgekit

#endif  // EDGEKIT_KERNELS_HEAD_CANDIDATES_H
